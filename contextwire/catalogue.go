package contextwire

import (
	"math"
	"time"
)

// NodeRecord is what a process says of itself in the catalogue (wire protocol,
// section 11).
type NodeRecord struct {
	// Protocol is the writer's [ProtocolVersion].
	Protocol   int
	Node, Boot string
	// NS is the namespace, Version that of the program.
	NS, Version string
	// MaxPayload is the largest NATS message in bytes.
	MaxPayload int64
	// Capacity is how many calls run at once, InFlight how many do.
	Capacity, InFlight int
	Draining           bool
	// GraceMS is the owner's grace period in milliseconds.
	GraceMS int64
	// Inbox is the process's inbox prefix.
	Inbox string
	// NamedOnly says that the process is in no queue group: it takes a call only of
	// whoever names it, and nobody chooses it otherwise.
	NamedOnly bool
	Modules   []ModuleRef
	At        time.Time
}

// ModuleRef names a module that a process hosts and the content hash of its
// descriptor.
type ModuleRef struct {
	ID, Version, Hash string
}

// Map returns the wire form.
func (n *NodeRecord) Map() map[string]any {
	modules := make([]any, len(n.Modules))
	for i, ref := range n.Modules {
		modules[i] = map[string]any{"id": ref.ID, "version": ref.Version, "hash": ref.Hash}
	}
	m := map[string]any{
		"protocol": int64(n.Protocol), "node": n.Node, "boot": n.Boot, "ns": n.NS,
		"max_payload": n.MaxPayload, "capacity": int64(n.Capacity), "in_flight": int64(n.InFlight),
		"draining": n.Draining, "grace_ms": n.GraceMS, "modules": modules,
	}
	putText(m, "version", n.Version)
	putText(m, "inbox", n.Inbox)
	if n.NamedOnly {
		m["named_only"] = true
	}
	putTime(m, "at", n.At)
	return m
}

// DecodeNodeRecord reads a [NodeRecord]. A record of a newer protocol is read as
// far as it is understood; Protocol says so.
func DecodeNodeRecord(body []byte, ct ContentType, lim Limits) (*NodeRecord, error) {
	r, err := readRecord("node record", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return readNodeRecord(r)
}

// NodeRecordFromMap reads the body of an answering frame.
func NodeRecordFromMap(m map[string]any) (*NodeRecord, error) {
	return readNodeRecord(&record{what: "node record", m: m})
}

func readNodeRecord(r *record) (*NodeRecord, error) {
	n := &NodeRecord{
		Protocol: int(r.integer("protocol", 1, math.MaxInt32)), Node: r.need("node"), Boot: r.need("boot"),
		NS: r.need("ns"), Version: r.text("version"), MaxPayload: r.integer("max_payload", 0, math.MaxInt64),
		Capacity: r.count("capacity"), InFlight: r.count("in_flight"), Draining: r.boolean("draining"),
		GraceMS: r.integer("grace_ms", 0, maxMillis), Inbox: r.text("inbox"), NamedOnly: r.boolean("named_only"), At: r.time("at"),
	}
	r.records("modules", func(item *record) {
		n.Modules = append(n.Modules, ModuleRef{item.need("id"), item.text("version"), item.text("hash")})
	})
	if r.err == nil && (!validNode(n.Node) || !isToken(n.Boot)) {
		return nil, bad("node record: node or boot is malformed")
	}
	return done(r, n)
}

// validNode reports whether s is a node ID, [a-z0-9_-]{1,64}.
func validNode(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
