package bus

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// target is where an attempt goes.
type target struct {
	subject string
	proc    proc // zero for the queue group
	grace   time.Duration
}

func (t target) directed() bool { return t.proc != (proc{}) }

// choose picks the host for an attempt: of two random usable ones the one with
// the smaller smoothed latency × calls in flight (wire protocol, section 1).
// Without a usable host the module's queue group takes the call, unless the request
// names its node.
func (c *Client) choose(kind string, req *contextwire.Request, tried []proc) (target, *module.Error) {
	var few [8]candidate // enough for most, without an allocation
	var list []candidate
	if req.Node == "" {
		list, _ = c.dir.candidates(few[:0], req.ModuleID)
	} else {
		list, tried = freshFirst(c.dir.onNode(few[:0], req.Node, req.ModuleID), tried), nil
	}
	usable := list[:0]
	major, wanted := wantedMajor(req.Version)
	for _, cand := range list {
		if slices.Contains(tried, cand.proc) || (wanted && majorOf(cand.version) != major) {
			continue
		}
		usable = append(usable, cand)
	}
	if n := c.healthyFirst(usable); n > 0 {
		usable = usable[:n]
	}
	if len(usable) == 0 {
		switch {
		case req.Node != "":
			return target{}, c.notThere(req, wanted)
		case wanted:
			return target{subject: c.subjects.major(kind, major, req.ModuleID)}, nil
		}
		return target{subject: c.subjects.any(kind, req.ModuleID)}, nil
	}
	best := usable[rand.IntN(len(usable))] //nolint:gosec // balancing needs no secrecy
	if len(usable) > 1 {
		other := usable[rand.IntN(len(usable)-1)] //nolint:gosec // as above
		if other.proc == best.proc {
			other = usable[len(usable)-1]
		}
		if c.load(other.proc) < c.load(best.proc) {
			best = other
		}
	}
	return target{
		subject: c.subjects.directed(kind, best.node, best.boot, req.ModuleID),
		proc:    best.proc, grace: best.grace,
	}, nil
}

// freshFirst keeps the processes of a node that were not tried. Another attempt may go
// where the last one went, when there is nowhere else.
func freshFirst(list []candidate, tried []proc) []candidate {
	fresh := func(cand candidate) bool { return !slices.Contains(tried, cand.proc) }
	if slices.ContainsFunc(list, fresh) {
		list = slices.DeleteFunc(list, func(cand candidate) bool { return !fresh(cand) })
	}
	return list
}

// notThere says why the node that a request names cannot have the call.
func (c *Client) notThere(req *contextwire.Request, versioned bool) *module.Error {
	refuse := func(code module.Code, text string) *module.Error {
		return module.Errorf(code, "%s", text).
			WithDetails(map[string]any{"module_id": req.ModuleID, "node": req.Node})
	}
	known, hosted, draining := c.dir.at(req.Node, req.ModuleID)
	switch {
	case !known:
		return refuse(module.CodeBusNoResponders, "no live node has this id")
	case draining:
		return refuse(module.CodeBusNoResponders, "the node is draining and takes nothing new")
	case !hosted:
		return refuse(module.CodeModuleNotFound, "the node does not host the module")
	case versioned:
		return refuse(module.CodeBusVersionMismatch, "the node hosts another version of the module")
	}
	return refuse(module.CodeBusNoResponders, "the node does not answer")
}

// elsewhere reports whether the catalogue shows a host that was not tried.
func (c *Client) elsewhere(req *contextwire.Request, tried []proc) bool {
	var list []candidate
	if req.Node == "" {
		list, _ = c.dir.candidates(nil, req.ModuleID)
	} else {
		list = c.dir.onNode(nil, req.Node, req.ModuleID)
	}
	return slices.ContainsFunc(list, func(cand candidate) bool { return !slices.Contains(tried, cand.proc) })
}

// healthyFirst moves the candidates that are neither stale nor suspect to the
// front and returns how many there are.
func (c *Client) healthyFirst(list []candidate) int {
	now, n := time.Now(), 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, cand := range list {
		if h := c.hosts[cand.proc]; !cand.stale && (h == nil || !h.isSuspect(now)) {
			list[n], list[i] = list[i], list[n]
			n++
		}
	}
	return n
}

// load is what the choice compares; a host never called costs nothing.
func (c *Client) load(p proc) float64 {
	c.mu.Lock()
	h := c.hosts[p]
	c.mu.Unlock()
	if h == nil {
		return 0
	}
	return h.load()
}

// wantedMajor reads the major version that a constraint admits, when it admits
// only one.
func wantedMajor(constraint string) (major int, ok bool) {
	constraint = strings.TrimSpace(constraint)
	if constraint == "" || strings.ContainsAny(constraint, ",<>") {
		return 0, false
	}
	head, _, _ := strings.Cut(strings.TrimLeft(constraint, "^~="), ".")
	n, err := strconv.Atoi(head)
	return n, err == nil && n >= 0
}

// nobody names the failure of a request that reached no one: a module that is
// known has no live host, an unknown one does not exist.
func (c *Client) nobody(a *attempt) *module.Error {
	if a.target.directed() {
		c.dir.drop(a.target.proc)
		if a.host != nil {
			a.host.suspect(time.Second)
		}
	}
	id := a.req.ModuleID
	if _, known := c.dir.candidates(nil, id); known || a.target.directed() || c.everKnown(id) {
		return module.Errorf(module.CodeBusNoResponders, "no live host for module %s", id).
			WithDetail("module_id", id).At(a.req.Context, id).NotExecuted()
	}
	return module.Errorf(module.CodeModuleNotFound, "module %s is not known on the bus", id).
		WithDetail("module_id", id).At(a.req.Context, id).NotExecuted()
}

// everKnown asks the catalogue whether the module was ever hosted. It is asked
// only after a call failed.
func (c *Client) everKnown(id string) bool {
	cat := c.dir.cat.Load()
	if cat == nil {
		return false
	}
	ctx, stop := context.WithTimeoutCause(c.life, time.Second, errors.New("the catalogue did not answer"))
	defer stop()
	_, err := cat.modules.Get(ctx, moduleKey(id))
	return err == nil || !errors.Is(err, jetstream.ErrKeyNotFound)
}
