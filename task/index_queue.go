package task

import (
	"maps"
	"slices"
)

// priorities is how many there are, defaultPriority what a submission has that names
// none.
const (
	priorities      = 10
	defaultPriority = 5
)

// strides says how far a lane moves on when one of its tasks is taken: the lane
// that is least far gets the next turn, so a lane of priority 9 gets 32 turns for
// one of priority 0, and none ever starves (rule 9).
func stride(priority uint8) float64 {
	return 1 / [priorities]float64{1, 2, 3, 4, 6, 8, 12, 16, 24, 32}[priority]
}

// lanes are first-in-first-out lists of queued items, one for each priority.
type lanes struct {
	lane [priorities]lane
	live int
}

type lane struct {
	entries []laneEntry
	head    int
	live    int
	pass    float64
}

// laneEntry counts as long as the item has the same ticket: an item leaves a lane
// by taking another.
type laneEntry struct {
	it     *item
	ticket uint32
}

// push puts it at the end of its lane. A lane that was empty begins at now, so that
// it does not make up for the time in which it had nothing.
func (l *lanes) push(it *item, now float64) {
	n := &l.lane[it.priority]
	if n.live == 0 {
		n.pass = max(n.pass, now)
	}
	it.ticket++
	n.entries = append(n.entries, laneEntry{it, it.ticket})
	n.live++
	l.live++
	if len(n.entries) > 64 && len(n.entries) > 3*n.live {
		n.compact()
	}
}

// left says that it is no longer in its lane.
func (l *lanes) left(it *item) {
	it.ticket++
	l.lane[it.priority].live--
	l.live--
}

// first returns the lane whose turn it is, and how far it is; -1 when all are empty.
func (l *lanes) first() (priority int, pass float64) {
	priority = -1
	if l.live == 0 {
		return priority, 0
	}
	for p := range l.lane {
		if n := &l.lane[p]; n.live > 0 && (priority < 0 || n.pass <= pass) {
			priority, pass = p, n.pass
		}
	}
	return priority, pass
}

// peek returns the first item of a lane, which is not empty.
func (l *lanes) peek(priority int) *item {
	n := &l.lane[priority]
	if n.head > 64 && n.head*2 > len(n.entries) {
		n.compact()
	}
	for n.head < len(n.entries) {
		e := n.entries[n.head]
		if e.it.ticket == e.ticket {
			return e.it
		}
		n.entries[n.head] = laneEntry{}
		n.head++
	}
	return nil
}

// charge counts a turn of the lane that it is the first of.
func (l *lanes) charge(it *item) { l.lane[it.priority].pass += stride(it.priority) }

func (n *lane) compact() {
	kept := n.entries[:0]
	for _, e := range n.entries[n.head:] {
		if e.it != nil && e.it.ticket == e.ticket {
			kept = append(kept, e)
		}
	}
	clear(n.entries[len(kept):])
	n.entries, n.head = kept, 0
}

// queue is what the index knows of one module.
type queue struct {
	id       string
	settings QueueSettings
	stored   bool // the log has settings
	lanes    lanes
	count    [places]int
	all      ordered
	keys     map[string]*keyState
	pollers  []*poller // who waits for work of this module, oldest first
	asked    map[string]Stamp
	lookAt   int  // how many that asked make the next one look for those that are gone
	rerun    bool // as the last node that asked for its work said
}

// keyState is what the tasks of one concurrency key share. A task that is queued
// for a node, granted or running holds a share; the others wait here.
type keyState struct {
	name   string
	shares int
	lanes  lanes
}

// ask notes that a node asked for work. w is locked.
func (q *queue) ask(node string, now Stamp, rerun bool) {
	if len(q.asked) >= q.lookAt {
		q.lookAt = 2*q.hosts(now) + 16
	}
	q.asked[node], q.rerun = now, rerun
}

// idle reports whether nothing would be lost with q.
func (q *queue) idle(now Stamp) bool {
	waits := slices.ContainsFunc(q.pollers, func(p *poller) bool { return !p.gone })
	return len(q.all.items) == q.all.gone && !q.stored && !waits && q.hosts(now) == 0
}

// hosts counts the nodes that asked for work lately.
func (q *queue) hosts(now Stamp) int {
	maps.DeleteFunc(q.asked, func(_ string, at Stamp) bool { return now.Sub(at) > hostMemory })
	return len(q.asked)
}

// open reports whether a task of q may be granted now.
func (q *queue) open() bool {
	return !q.settings.Paused && q.lanes.live > 0 &&
		(q.settings.Concurrency == 0 || q.count[inClaimed]+q.count[inRunning] < q.settings.Concurrency)
}

func (q *queue) keyLimit() int { return max(q.settings.KeyConcurrency, 1) }

// enqueue makes it wait for a node, or for a share of its key.
func (q *queue) enqueue(it *item, now float64) {
	if it.extra != nil && it.extra.keyName != "" && !it.keyed {
		key := q.key(it.extra.keyName)
		it.extra.key = key
		if key.shares >= q.keyLimit() {
			key.lanes.push(it, 0)
			return
		}
		key.shares++
		it.keyed = true
	}
	q.lanes.push(it, now)
}

func (q *queue) key(name string) *keyState {
	k := q.keys[name]
	if k == nil {
		k = &keyState{name: name}
		if q.keys == nil {
			q.keys = make(map[string]*keyState)
		}
		q.keys[name] = k
	}
	return k
}

// waiting reports whether it, which is queued, waits for a share of its key.
func (it *item) waiting() bool { return it.extra != nil && it.extra.key != nil && !it.keyed }

// dequeue takes it out of wherever it waits.
func (q *queue) dequeue(it *item) {
	if it.waiting() {
		it.extra.key.lanes.left(it)
		it.extra.key = nil
		return
	}
	q.lanes.left(it)
}

// leave gives back the share of its key that it holds, and lets the next ones have
// it. They are queued from then on.
func (q *queue) leave(it *item, now float64) {
	if !it.keyed {
		return
	}
	key := it.extra.key
	it.keyed, it.extra.key = false, nil
	key.shares--
	q.admit(key, now)
	if key.shares == 0 && key.lanes.live == 0 {
		delete(q.keys, key.name)
	}
}

// admit hands out free shares of a key.
func (q *queue) admit(key *keyState, now float64) {
	for key.shares < q.keyLimit() {
		p, _ := key.lanes.first()
		if p < 0 {
			return
		}
		it := key.lanes.peek(p)
		key.lanes.charge(it)
		key.lanes.left(it)
		key.shares++
		it.keyed = true
		q.lanes.push(it, now)
	}
}
