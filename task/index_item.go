package task

// place is status and detail in one byte.
type place uint8

const (
	inAside place = iota // a record that cannot be read or is too new
	inQueued
	inScheduled
	inBackingOff
	inAwaiting
	inClaimed
	inRunning
	inCompleted
	inFailed
	inDead
	inCancelled
	places
)

func placeOf(r *Record) place {
	switch r.Status {
	case Running:
		return inRunning
	case Completed:
		return inCompleted
	case Cancelled:
		return inCancelled
	case Failed:
		if r.Detail == Dead {
			return inDead
		}
		return inFailed
	}
	switch r.Detail {
	case Scheduled:
		return inScheduled
	case BackingOff:
		return inBackingOff
	case AwaitingApproval:
		return inAwaiting
	case Claimed:
		return inClaimed
	}
	return inQueued
}

func (p place) active() bool   { return p >= inQueued && p <= inRunning }
func (p place) terminal() bool { return p >= inCompleted }
func (p place) owned() bool    { return p == inClaimed || p == inRunning }

func (p place) status() Status {
	switch p {
	case inRunning:
		return Running
	case inCompleted:
		return Completed
	case inFailed, inDead:
		return Failed
	case inCancelled:
		return Cancelled
	}
	return Pending
}

// item is what the index knows of every task, small because there may be a million: a
// test pins its size.
type item struct {
	id     taskID
	order  int64
	number int64 // of the last transition
	q      *queue

	// rec is the record while it is kept in memory: always while it is owned, shown
	// to a commit or set aside.
	rec   *Record
	extra *itemExtra

	// dirty is the last batch that has it, and where.
	dirty   uint64
	dirtyAt int32
	timer   int32 // place in the heap plus one, 0 for none
	ticket  uint32

	place    place
	priority uint8
	gone     bool
	keyed    bool // holds or waits for a share of its concurrency key
}

// itemExtra is what few items have.
type itemExtra struct {
	idem    idemKey
	digest  inputDigest
	hasIdem bool
	child   bool      // to be cancelled with the task that submitted it
	keyName string    // concurrency key
	key     *keyState // while it holds or waits for a share
	busy    *itemBusy
}

// itemBusy is what an item has while a node owns it, it waits for an approval or
// somebody waits for news of it.
type itemBusy struct {
	until    Stamp // end of the lease, which renewals move without touching the record
	heard    bool  // its node has spoken since the grant
	unborn   bool  // owned, and the log does not know
	progress *Progress
	saved    Stamp // when progress was last given to the log
	// cancelIn is the batch that makes the request to cancel durable, 0 once loaded.
	cancelIn uint64
	approval string
	watchers []chan struct{}
}

func (it *item) more() *itemExtra {
	if it.extra == nil {
		it.extra = &itemExtra{}
	}
	return it.extra
}

// busy returns what it has while something is going on, to be changed.
func (it *item) busy() *itemBusy {
	x := it.more()
	if x.busy == nil {
		x.busy = &itemBusy{}
	}
	return x.busy
}

// doing is busy to be read.
func (it *item) doing() itemBusy {
	if it.extra == nil || it.extra.busy == nil {
		return itemBusy{}
	}
	return *it.extra.busy
}

// rest lets go of what nobody needs once nothing is going on.
func (it *item) rest() {
	x := it.extra
	if x == nil || it.place.owned() {
		return
	}
	if b := x.busy; b != nil {
		if *b = (itemBusy{approval: b.approval, watchers: b.watchers}); b.approval == "" && len(b.watchers) == 0 {
			x.busy = nil
		}
	}
	if *x == (itemExtra{}) {
		it.extra = nil
	}
}

// written says that the log is given what is known of it.
func (it *item) written() {
	if it.extra != nil && it.extra.busy != nil {
		it.extra.busy.unborn = false
	}
}

// unwritten reports whether memory knows more than the log was given.
func (it *item) unwritten() bool { return it.doing().unborn }

// notify wakes everybody who waits for news of it.
func (it *item) notify() {
	if it.extra == nil || it.extra.busy == nil {
		return
	}
	for _, ch := range it.extra.busy.watchers {
		close(ch)
	}
	it.extra.busy.watchers = nil
}

// ordered is a list of items in the order of submission. Items that are gone are
// dropped when they are half of it.
type ordered struct {
	items []*item
	gone  int
}

// add appends it, which is younger than all others.
func (o *ordered) add(it *item) { o.items = append(o.items, it) }

// dropped says that one of the items is gone now.
func (o *ordered) dropped() {
	if o.gone++; o.gone < 64 || o.gone*2 < len(o.items) {
		return
	}
	kept := o.items[:0]
	for _, it := range o.items {
		if !it.gone {
			kept = append(kept, it)
		}
	}
	clear(o.items[len(kept):])
	o.items, o.gone = kept, 0
}

// after returns the index of the first item with a larger order.
func (o *ordered) after(order int64) int {
	lo, hi := 0, len(o.items)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if o.items[mid].order > order {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}
