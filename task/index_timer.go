package task

// timers is a heap of items by the time at which somebody has to look at them. A
// renewal moves the end of a lease and not the item in the heap, which comes up early
// then and is put back.
type timers struct {
	heap []timerEntry
}

type timerEntry struct {
	at Stamp
	it *item
}

// set makes it come up at the given time; 0 takes it out.
func (t *timers) set(it *item, at Stamp) {
	switch {
	case at == 0:
		t.remove(it)
	case it.timer == 0:
		t.heap = append(t.heap, timerEntry{at, it})
		it.timer = int32(len(t.heap))
		t.up(len(t.heap) - 1)
	default:
		i := int(it.timer) - 1
		was := t.heap[i].at
		t.heap[i].at = at
		if at < was {
			t.up(i)
		} else if at > was {
			t.down(i)
		}
	}
}

func (t *timers) remove(it *item) {
	if it.timer == 0 {
		return
	}
	i, last := int(it.timer)-1, len(t.heap)-1
	it.timer = 0
	if i != last {
		t.heap[i] = t.heap[last]
		t.heap[i].it.timer = int32(i + 1)
	}
	t.heap[last] = timerEntry{}
	t.heap = t.heap[:last]
	if i != last {
		t.down(i)
		t.up(i)
	}
}

// first returns the time of the earliest entry, 0 when there is none.
func (t *timers) first() Stamp {
	if len(t.heap) == 0 {
		return 0
	}
	return t.heap[0].at
}

// pop takes out the earliest item when it is due, and returns since when.
func (t *timers) pop(now Stamp) (*item, Stamp) {
	if len(t.heap) == 0 || t.heap[0].at > now {
		return nil, 0
	}
	e := t.heap[0]
	t.remove(e.it)
	return e.it, e.at
}

// The heap is four-ary: half as deep, and children lie side by side.
func (t *timers) up(i int) {
	e := t.heap[i]
	for i > 0 {
		p := (i - 1) / 4
		if t.heap[p].at <= e.at {
			break
		}
		t.heap[i] = t.heap[p]
		t.heap[i].it.timer = int32(i + 1)
		i = p
	}
	t.heap[i] = e
	e.it.timer = int32(i + 1)
}

func (t *timers) down(i int) {
	e := t.heap[i]
	for {
		first := 4*i + 1
		if first >= len(t.heap) {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, len(t.heap)); c++ {
			if t.heap[c].at < t.heap[least].at {
				least = c
			}
		}
		if t.heap[least].at >= e.at {
			break
		}
		t.heap[i] = t.heap[least]
		t.heap[i].it.timer = int32(i + 1)
		i = least
	}
	t.heap[i] = e
	e.it.timer = int32(i + 1)
}
