package task

import (
	"context"
	"iter"
	"time"
)

// Events returns what happened to a task after a number, and waits when nothing has;
// see [Service].
func (w *Writer) Events(ctx context.Context, req EventsRequest) (Events, error) {
	if req.After < 0 {
		return Events{}, bad("after", "must not be negative")
	}
	var over <-chan time.Time
	for {
		if err := w.enter(ctx); err != nil {
			return Events{}, err
		}
		it, err := w.find(req.TaskID)
		if err != nil {
			w.mu.Unlock()
			return Events{}, err
		}
		v := w.look(it)
		head := it.number
		if v.progress != nil {
			head = max(head, v.progress.Number)
		}
		if head != req.After || it.place.terminal() || it.place == inAside || req.WaitMS <= 0 {
			w.mu.Unlock()
			return w.tell(ctx, req.After, v)
		}
		news, leave := w.watch(it)
		w.mu.Unlock()
		if over == nil {
			timer := time.NewTimer(waitOf(req.WaitMS))
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-news:
		case <-w.stopped:
		case <-over:
			leave()
			return Events{Events: []Event{}, Next: req.After}, nil
		case <-ctx.Done():
			leave()
			return Events{}, unanswered(ctx)
		}
	}
}

// tell makes the events of a record after a number.
func (w *Writer) tell(ctx context.Context, after int64, v sight) (Events, error) {
	r, err := w.show(ctx, v)
	if err != nil {
		return Events{}, err
	}
	if err := w.still(); err != nil {
		return Events{}, err
	}
	return eventsOf(&r, after), nil
}

// eventsOf lists what happened to r after a number: transitions, the last word about
// progress, and the end. A reader without a number, one that missed what is no
// longer known, and one that knows more than there is, because a former writer told
// it of what never became durable, get the present state as well.
func eventsOf(r *Record, after int64) Events {
	head := r.Number
	if r.Progress != nil && r.Status == Running {
		head = max(head, r.Progress.Number)
	}
	out := Events{Events: []Event{}, Next: head, Ended: r.Status.Terminal()}
	missing := after > head || r.TimelineDropped > 0 && len(r.Timeline) > 0 && after < r.Timeline[0].Number-1 && after != 0
	switch {
	case missing:
		out.Events = append(out.Events, Event{Number: min(after, head), Kind: EventGap, Task: r})
		if after > head {
			after = head
			if out.Ended { // it must see the end
				after = head - 1
			}
		}
	case after == 0:
		first := int64(1)
		if len(r.Timeline) > 0 {
			first = r.Timeline[0].Number - 1
		}
		out.Events = append(out.Events, Event{Number: first, Kind: EventSnapshot, Task: r})
	}
	for i := range r.Timeline {
		t := &r.Timeline[i]
		if t.Number <= after {
			continue
		}
		e := Event{Number: t.Number, Kind: EventTransition, Transition: t}
		if t.Number == r.Number && out.Ended {
			e.Kind, e.Task = EventEnd, r
		}
		out.Events = append(out.Events, e)
	}
	if p := r.Progress; p != nil && r.Status == Running && p.Number > after {
		out.Events = append(out.Events, Event{Number: p.Number, Kind: EventProgress, Progress: p})
	}
	if out.Ended && (len(out.Events) == 0 || out.Events[len(out.Events)-1].Kind != EventEnd) {
		out.Events = append(out.Events, Event{Number: head, Kind: EventEnd, Task: r, Transition: lastOf(r)})
	}
	return out
}

func lastOf(r *Record) *Transition {
	if len(r.Timeline) == 0 {
		return nil
	}
	return &r.Timeline[len(r.Timeline)-1]
}

// EventSource is where [Follow] asks for events.
type EventSource interface {
	Events(ctx context.Context, req EventsRequest) (Events, error)
}

// Follow yields what happens to a task after a number, 0 for everything, until it is
// over. A reader that was dropped goes on with the number of the last event it got. An
// error ends it; so does ctx, with an error.
func Follow(ctx context.Context, src EventSource, id string, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			page, err := src.Events(ctx, EventsRequest{TaskID: id, After: after, WaitMS: (30 * time.Second).Milliseconds()})
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, e := range page.Events {
				if !yield(e, nil) {
					return
				}
			}
			if page.Ended {
				return
			}
			after = page.Next
		}
	}
}
