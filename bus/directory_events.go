package bus

import (
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Events of [ClientOptions].Events. Those of nodes have node, boot, version and
// modules, how many it hosts; that of a fork has node, other and version, and names
// its module.
const (
	// EventNodeJoined tells of a process that was not in the catalogue before.
	EventNodeJoined = "apbus.node.joined"
	// EventNodeDraining tells of one that takes nothing new.
	EventNodeDraining = "apbus.node.draining"
	// EventNodeLeft tells of one that took its record away.
	EventNodeLeft = "apbus.node.left"
	// EventNodeLost tells of one that is gone without doing so.
	EventNodeLost = "apbus.node.lost"
	// EventVersionFork tells of two nodes that disagree on what one version of a
	// module is (wire protocol, section 11).
	EventVersionFork = "apbus.module.version_fork"
)

// tellLocked notes what became of a process, for unlock to tell.
func (d *directory) tellLocked(typ, severity string, n *NodeInfo) {
	if d.emit == nil {
		return
	}
	d.news = append(d.news, module.Event{Type: typ, Severity: severity, At: time.Now().UTC(), Data: map[string]any{
		"node": n.Node, "boot": n.Boot, "version": n.Version, "modules": int64(len(n.Modules)),
	}})
}

// forkLocked notes that two nodes disagree.
func (d *directory) forkLocked(m contextwire.ModuleRef, node, other string) {
	if d.emit == nil {
		return
	}
	d.news = append(d.news, module.Event{Type: EventVersionFork, ModuleID: m.ID, Severity: module.SeverityWarn, At: time.Now().UTC(), Data: map[string]any{
		"module_id": m.ID, "version": m.Version, "node": node, "other": other,
	}})
}

// unlock frees mu and tells what was noted under it.
func (d *directory) unlock() {
	news := d.news
	d.news = nil
	d.mu.Unlock()
	for _, e := range news {
		d.emit(e)
	}
}

// follow has what happens from now on told to emit.
func (d *directory) follow(emit func(module.Event)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.emit = emit
}
