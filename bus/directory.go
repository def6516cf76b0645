package bus

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// proc names one run of one node.
type proc struct{ node, boot string }

// HostRef is one process that hosts a module.
type HostRef struct {
	Node, Boot string
	// Version and Hash are those of the module there.
	Version, Hash string
	Draining      bool
}

// ModuleInfo is a module as the catalogue knows it.
type ModuleInfo struct {
	Descriptor module.Descriptor
	Hash       string
	// Hosts are the live processes, sorted by node.
	Hosts []HostRef
}

// NodeInfo is a process as the catalogue knows it.
type NodeInfo struct {
	contextwire.NodeRecord
	SeenAt time.Time
	// Stale is true when the record is overdue.
	Stale bool
}

// directory is the catalogue in memory. It lists the buckets at the start, on
// every reconnect and now and then, and between that follows the writes as
// they pass, because a watcher may need 20 s to recover from a server restart.
type directory struct {
	conns *Conns
	cat   atomic.Pointer[catalogue] // nil without JetStream
	ns    string
	log   *slog.Logger
	calm  *calmLog

	mu          sync.RWMutex
	nodes       map[proc]*NodeInfo
	lost        map[string]*lostNode // by node: forgotten lately, not by its own wish
	hosts       map[string][]proc    // by module
	descriptors map[string]module.Descriptor
	fetching    map[string]bool
	changed     chan struct{}  // closed and replaced on every change
	news        []module.Event // to be told once mu is free

	emit func(module.Event) // nil for none; set once the directory is filled

	relist    chan struct{} // capacity 1
	listAgain atomic.Bool   // the last listing failed
	wanted    chan string   // descriptor hashes to fetch
	stop      context.CancelCauseFunc
	wg        sync.WaitGroup
	undo      []func()
}

// startDirectory fills the directory before it returns, so that the first call
// can already be directed.
func startDirectory(conns *Conns, s subjects, log *slog.Logger) (*directory, error) {
	d := &directory{
		conns: conns, ns: s.ns, log: log, calm: newCalmLog(log),
		nodes: map[proc]*NodeInfo{}, lost: map[string]*lostNode{}, hosts: map[string][]proc{},
		descriptors: map[string]module.Descriptor{}, fetching: map[string]bool{},
		changed: make(chan struct{}), relist: make(chan struct{}, 1), wanted: make(chan string, 1024),
	}
	ctx, stop := context.WithCancelCause(context.Background())
	d.stop = stop
	if conns.JS == nil {
		return d, nil
	}
	setup, done := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("the catalogue did not answer"))
	defer done()
	cat, err := openCatalogue(setup, conns.JS, conns.replicas)
	if err != nil {
		stop(err)
		return nil, module.Wrap(module.CodeBusDisconnected, err, "cannot open the catalogue")
	}
	d.cat.Store(cat)
	sub, err := conns.Control.Subscribe(nodeRecordSubject(s.ns), "", d.onRecord)
	if err != nil {
		stop(err)
		return nil, err
	}
	d.undo = append(d.undo, func() { _ = sub.Unsubscribe() }, conns.OnReconnect(d.requestRelist))
	if err := conns.Control.Flush(setup); err != nil {
		d.close()
		return nil, module.Wrap(module.CodeBusDisconnected, err, "cannot follow the catalogue")
	}
	d.list(setup)
	d.wg.Go(func() { d.run(ctx) })
	d.wg.Go(func() { d.fetch(ctx) })
	return d, nil
}

func (d *directory) close() {
	for _, undo := range d.undo {
		undo()
	}
	d.stop(cancel.Because(cancel.Shutdown, "", "directory closed"))
	d.wg.Wait()
}

func (d *directory) requestRelist() {
	select {
	case d.relist <- struct{}{}:
	default: // one is due already
	}
}

func (d *directory) run(ctx context.Context) {
	sweep := time.NewTicker(time.Second)
	defer sweep.Stop()
	lastList := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.relist:
			d.list(ctx)
			lastList = time.Now()
		case <-sweep.C:
			d.expire()
			if d.listAgain.Swap(false) || time.Since(lastList) > 2*recordTTL {
				d.list(ctx)
				lastList = time.Now()
			}
		}
	}
}

func (d *directory) list(ctx context.Context) {
	ctx, stop := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("the catalogue did not answer"))
	defer stop()
	records, err := d.cat.Load().records(ctx, d.ns)
	if err != nil {
		// The server may have lost the buckets, which lie in memory in part.
		var cat *catalogue
		if cat, err = openCatalogue(ctx, d.conns.JS, d.conns.replicas); err == nil {
			d.cat.Store(cat)
			records, err = cat.records(ctx, d.ns)
		}
	}
	if err != nil {
		if d.conns.Control.Connected() {
			d.calm.warn("cannot list the catalogue", "cause", err)
		}
		d.listAgain.Store(true)
		return
	}
	for _, r := range records {
		d.upsert(r)
	}
}

// onRecord sees a node's write pass by. A write without a body is a deletion.
func (d *directory) onRecord(m *nats.Msg) {
	if len(m.Data) == 0 {
		d.forgetKey(m.Subject)
		return
	}
	r, err := decodeRecord(m.Data)
	if err != nil {
		d.calm.warn("ignoring a malformed node record", "subject", m.Subject, "cause", err)
		return
	}
	d.upsert(r)
}

func (d *directory) forgetKey(subject string) {
	d.mu.Lock()
	defer d.unlock()
	for p, n := range d.nodes {
		if subject == "$KV."+nodesBucket+"."+recordKey(d.ns, p.node, p.boot) {
			d.removeLocked(p)
			d.tellLocked(EventNodeLeft, module.SeverityInfo, n)
			d.notifyLocked()
			return
		}
	}
	for node, n := range d.lost { // it was looked for after it had gone, and before this came
		if subject == "$KV."+nodesBucket+"."+recordKey(d.ns, node, n.Boot) {
			delete(d.lost, node)
		}
	}
}

func (d *directory) upsert(r contextwire.NodeRecord) {
	if r.Protocol != contextwire.ProtocolVersion || r.NS != d.ns {
		return
	}
	d.conns.floor.note(r.MaxPayload)
	p := proc{r.Node, r.Boot}
	d.mu.Lock()
	defer d.unlock()
	now := time.Now()
	old := d.nodes[p]
	if old != nil && r.At.Before(old.At) {
		return // a listing raced a newer write
	}
	// What is listed may have been written some time ago; the node's own clock
	// is not ours, so a first sight counts as fresh.
	info := &NodeInfo{NodeRecord: r, SeenAt: now}
	if old != nil && r.At.Equal(old.At) { // listed again, no sign of life
		info.SeenAt, info.Stale = old.SeenAt, old.Stale
	}
	d.nodes[p] = info
	delete(d.lost, r.Node)
	if old == nil || !slices.Equal(old.Modules, r.Modules) {
		d.reindexLocked()
		d.warnForksLocked(r)
	}
	switch {
	case old == nil:
		d.tellLocked(EventNodeJoined, module.SeverityInfo, info)
	case r.Draining && !old.Draining:
		d.tellLocked(EventNodeDraining, module.SeverityInfo, info)
	}
	for _, m := range r.Modules {
		d.wantLocked(m.Hash)
	}
	if old == nil || old.Draining != r.Draining || old.Stale != info.Stale || !slices.Equal(old.Modules, r.Modules) {
		d.notifyLocked()
	}
}

// warnForksLocked reports two live hosts that disagree on what one version of a
// module is.
func (d *directory) warnForksLocked(r contextwire.NodeRecord) {
	if r.NamedOnly {
		return // it may host something else under the same ID
	}
	for _, m := range r.Modules {
		for _, p := range d.hosts[m.ID] {
			for _, other := range d.nodes[p].Modules {
				if other.ID == m.ID && other.Version == m.Version && other.Hash != m.Hash {
					d.calm.warn("version_fork", "module_id", m.ID, "version", m.Version, "node", r.Node, "other", p.node)
					d.forkLocked(m, r.Node, p.node)
				}
			}
		}
	}
}

func (d *directory) removeLocked(p proc) {
	delete(d.nodes, p)
	d.reindexLocked()
}

func (d *directory) reindexLocked() {
	clear(d.hosts)
	for p, n := range d.nodes {
		if n.NamedOnly {
			continue // what it hosts is not what a call without a node means
		}
		for _, m := range n.Modules {
			d.hosts[m.ID] = append(d.hosts[m.ID], p)
		}
	}
}

func (d *directory) notifyLocked() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// lostNode is a process that went without taking leave.
type lostNode struct {
	*NodeInfo
	at time.Time
}

// lostKept is how long a process that was lost is remembered as such.
const lostKept = 2 * recordTTL

func (d *directory) loseLocked(p proc, n *NodeInfo) {
	d.removeLocked(p)
	d.lost[p.node] = &lostNode{NodeInfo: n, at: time.Now()}
	d.tellLocked(EventNodeLost, module.SeverityWarn, n)
}

// lostHosts lists the processes with the module that were lost lately and have no
// later life, sorted by node.
func (d *directory) lostHosts(moduleID string) []HostRef {
	d.mu.RLock()
	defer d.mu.RUnlock()
	alive := map[string]bool{}
	for p := range d.nodes {
		alive[p.node] = true // an earlier life of this one was lost late
	}
	var out []HostRef
	for node, n := range d.lost {
		if n.NamedOnly || alive[node] {
			continue
		}
		for _, m := range n.Modules {
			if m.ID == moduleID {
				out = append(out, HostRef{Node: node, Boot: n.Boot, Version: m.Version, Hash: m.Hash, Draining: n.Draining})
			}
		}
	}
	sortHosts(out)
	return out
}

func sortHosts(hosts []HostRef) {
	slices.SortFunc(hosts, func(a, b HostRef) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Boot, b.Boot))
	})
}

// expire marks overdue records stale and forgets those overdue twice over, and in
// time that they were lost.
func (d *directory) expire() {
	d.mu.Lock()
	defer d.unlock()
	now, changed := time.Now(), false
	for p, n := range d.nodes {
		switch age := now.Sub(n.SeenAt); {
		case age > 2*recordTTL:
			d.loseLocked(p, n)
			changed = true
		case age > recordTTL && !n.Stale:
			stale := *n
			stale.Stale = true
			d.nodes[p] = &stale
			changed = true
		}
	}
	for node, n := range d.lost {
		if now.Sub(n.at) > lostKept {
			delete(d.lost, node)
		}
	}
	if changed {
		d.notifyLocked()
	}
}

func (d *directory) wantLocked(hash string) {
	if _, have := d.descriptors[hash]; have || d.fetching[hash] || hash == "" {
		return
	}
	select {
	case d.wanted <- hash:
		d.fetching[hash] = true
	default: // asked again with the node's next record
	}
}

// fetch reads descriptors as they become known; one that cannot be read yet is
// asked for again with the node's next record.
func (d *directory) fetch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case hash := <-d.wanted:
			one, stop := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("the catalogue did not answer"))
			desc, err := d.cat.Load().descriptor(one, hash)
			stop()
			if err != nil && ctx.Err() == nil {
				d.calm.warn("cannot read a descriptor", "cause", err)
			}
			d.mu.Lock()
			delete(d.fetching, hash)
			if err == nil {
				d.descriptors[hash] = desc
				d.notifyLocked()
			}
			d.mu.Unlock()
		}
	}
}

// candidate is a process that could take a call.
type candidate struct {
	proc
	version string
	stale   bool
	grace   time.Duration
}

// candidates appends to list the processes that host the module and are not
// draining. known is true when any process at all was seen with it.
func (d *directory) candidates(list []candidate, moduleID string) (_ []candidate, known bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	hosts := d.hosts[moduleID]
	for _, p := range hosts {
		if n := d.nodes[p]; !n.Draining {
			list = appendCandidate(list, p, n, moduleID)
		}
	}
	return list, len(hosts) > 0
}

// onNode appends to list the processes of one node that host the module and are not
// draining, those that must be named among them.
func (d *directory) onNode(list []candidate, node, moduleID string) []candidate {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for p, n := range d.nodes {
		if p.node == node && !n.Draining {
			list = appendCandidate(list, p, n, moduleID)
		}
	}
	return list
}

func appendCandidate(list []candidate, p proc, n *NodeInfo, moduleID string) []candidate {
	for _, m := range n.Modules {
		if m.ID == moduleID {
			grace := time.Duration(n.GraceMS) * time.Millisecond
			return append(list, candidate{proc: p, version: m.Version, stale: n.Stale, grace: grace})
		}
	}
	return list
}

// at says what is known of a module on a node: whether a process has this node ID,
// whether all that do are draining, and whether another one hosts the module.
func (d *directory) at(node, moduleID string) (known, hosted, draining bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	draining = true
	for p, n := range d.nodes {
		if p.node != node {
			continue
		}
		known = true
		if n.Draining {
			continue // it may list nothing any more
		}
		draining = false
		if slices.ContainsFunc(n.Modules, func(m contextwire.ModuleRef) bool { return m.ID == moduleID }) {
			hosted = true
		}
	}
	return known, hosted, draining
}

// annotations returns what is known of the module's behaviour.
func (d *directory) annotations(moduleID string) (module.Annotations, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, p := range d.hosts[moduleID] {
		for _, m := range d.nodes[p].Modules {
			if m.ID != moduleID {
				continue
			}
			if desc, ok := d.descriptors[m.Hash]; ok {
				return desc.Annotations, true
			}
		}
	}
	return module.Annotations{}, false
}

// has reports whether the process is in the catalogue.
func (d *directory) has(p proc) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.nodes[p] != nil
}

// drop forgets a process that turned out to be gone.
func (d *directory) drop(p proc) {
	d.mu.Lock()
	defer d.unlock()
	if n, ok := d.nodes[p]; ok {
		d.loseLocked(p, n)
		d.notifyLocked()
	}
}

// nodeList returns all known processes, sorted by node and boot.
func (d *directory) nodeList() []NodeInfo {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make([]NodeInfo, 0, len(d.nodes))
	for _, n := range d.nodes {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b NodeInfo) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Boot, b.Boot))
	})
	return out
}

// moduleList returns every module with a known descriptor, sorted by ID. Where
// hosts disagree the highest version is described.
func (d *directory) moduleList() []ModuleInfo {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make([]ModuleInfo, 0, len(d.hosts))
	for _, id := range slices.Sorted(maps.Keys(d.hosts)) {
		if info, ok := d.moduleLocked(id); ok {
			out = append(out, info)
		}
	}
	return out
}

func (d *directory) module(id string) (ModuleInfo, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.moduleLocked(id)
}

func (d *directory) moduleLocked(id string) (ModuleInfo, bool) {
	var info ModuleInfo
	found := false
	for _, p := range d.hosts[id] {
		n := d.nodes[p]
		for _, m := range n.Modules {
			if m.ID != id {
				continue
			}
			info.Hosts = append(info.Hosts, HostRef{Node: p.node, Boot: p.boot, Version: m.Version, Hash: m.Hash, Draining: n.Draining})
			desc, ok := d.descriptors[m.Hash]
			if ok && (!found || compareVersions(m.Version, info.Descriptor.EffectiveVersion()) > 0) {
				info.Descriptor, info.Hash, found = desc, m.Hash, true
			}
		}
	}
	sortHosts(info.Hosts)
	return info, found
}

// waitFor blocks until ready says so about the directory; it is asked again
// after every change.
func (d *directory) waitFor(ctx context.Context, ready func() bool) error {
	for {
		d.mu.RLock()
		changed := d.changed
		d.mu.RUnlock()
		if ready() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
