package task

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// storedQueue is the body of a queue entry.
type storedQueue struct {
	V        int    `json:"v"`
	ModuleID string `json:"module_id"`
	QueueSettings
}

// Queues lists the queues that have or had work or settings; see [Service].
func (w *Writer) Queues(ctx context.Context) ([]QueueState, error) {
	if err := w.enter(ctx); err != nil {
		return nil, err
	}
	ids := slices.Sorted(maps.Keys(w.queues))
	states := make([]QueueState, 0, len(ids))
	var last *batch
	if len(w.batches) > 0 {
		last = w.batches[len(w.batches)-1]
	}
	for _, id := range ids {
		q := w.queues[id]
		if module.ValidateID(id) == nil && (len(q.all.items) > q.all.gone || q.stored) {
			states = append(states, w.stateOf(q))
		}
	}
	w.unlockAndKick()
	for i := range states {
		states[i].Hosts = max(states[i].Hosts, w.shapes.of(states[i].ModuleID).hosts)
	}
	if last != nil && len(last.changes) > 0 {
		if err := w.durable(ctx, last); err != nil {
			return nil, err
		}
	}
	return states, w.still()
}

// stateOf makes the state of a queue. w is locked.
func (w *Writer) stateOf(q *queue) QueueState {
	now := At(time.Now())
	s := QueueState{
		ModuleID: q.id, QueueSettings: q.settings,
		Queued: q.count[inQueued], Scheduled: q.count[inScheduled], BackingOff: q.count[inBackingOff],
		Awaiting: q.count[inAwaiting], Claimed: q.count[inClaimed], Running: q.count[inRunning],
		Hosts: q.hosts(now),
	}
	for p := range q.lanes.lane {
		if q.lanes.lane[p].live == 0 {
			continue
		}
		if it := q.lanes.peek(p); it != nil && it.rec != nil {
			s.OldestMS = max(s.OldestMS, now.Sub(it.rec.ReadyAt).Milliseconds())
		}
	}
	return s
}

// SetQueue replaces the settings of a queue; see [Service].
func (w *Writer) SetQueue(ctx context.Context, moduleID string, s QueueSettings) (QueueState, error) {
	if s.Concurrency < 0 || s.KeyConcurrency < 0 {
		return QueueState{}, bad("concurrency", "must not be negative")
	}
	return w.changeQueue(ctx, moduleID, func(QueueSettings) QueueSettings { return s })
}

// maxConcurrency bounds the limits of queues, so that absurd ones are refused.
const maxConcurrency = 1_000_000

// LimitQueue changes how many tasks run at once; see [Service].
func (w *Writer) LimitQueue(ctx context.Context, moduleID string, l QueueLimits) (QueueState, error) {
	if l.Concurrency == nil && l.KeyConcurrency == nil {
		return QueueState{}, bad("concurrency", "or key_concurrency must be given")
	}
	for _, limit := range []struct {
		name  string
		value *int
	}{{"concurrency", l.Concurrency}, {"key_concurrency", l.KeyConcurrency}} {
		if v := limit.value; v != nil && (*v < 0 || *v > maxConcurrency) {
			return QueueState{}, bad(limit.name, "must be 0 to 1,000,000")
		}
	}
	return w.changeQueue(ctx, moduleID, func(s QueueSettings) QueueSettings {
		if l.Concurrency != nil {
			s.Concurrency = *l.Concurrency
		}
		if l.KeyConcurrency != nil {
			s.KeyConcurrency = *l.KeyConcurrency
		}
		return s
	})
}

// Pause stops handing out a module's tasks; see [Service].
func (w *Writer) Pause(ctx context.Context, moduleID, by, reason string) (QueueState, error) {
	return w.changeQueue(ctx, moduleID, func(s QueueSettings) QueueSettings {
		s.Paused, s.PausedBy, s.Reason = true, by, reason
		return s
	})
}

// Resume hands out a module's tasks again; see [Service].
func (w *Writer) Resume(ctx context.Context, moduleID, by string) (QueueState, error) {
	return w.changeQueue(ctx, moduleID, func(s QueueSettings) QueueSettings {
		s.Paused, s.PausedBy, s.Reason = false, "", ""
		return s
	})
}

func (w *Writer) changeQueue(ctx context.Context, moduleID string, change func(QueueSettings) QueueSettings) (QueueState, error) {
	if err := module.ValidateID(moduleID); err != nil {
		return QueueState{}, err
	}
	hosts := w.shapes.of(moduleID).hosts
	if err := w.enter(ctx); err != nil {
		return QueueState{}, err
	}
	q := w.queueOf(moduleID)
	q.settings = change(q.settings)
	b := w.room(1)
	key := KeyQueue + moduleID
	if q.stored = q.settings != (QueueSettings{}); q.stored {
		body, err := json.Marshal(storedQueue{V: RecordVersion, ModuleID: moduleID, QueueSettings: q.settings})
		if err != nil {
			w.mu.Unlock()
			return QueueState{}, module.Errorf(module.CodeInternal, "encode queue settings: %w", err)
		}
		b.put(Entry{Key: key, Body: body})
	} else {
		b.put(Entry{Key: key, Delete: true})
	}
	for _, k := range q.keys { // more may run at once now
		q.admit(k, w.turn)
	}
	for range q.pollers {
		w.offer(q)
	}
	s := w.stateOf(q)
	w.unlockAndKick()
	s.Hosts = max(s.Hosts, hosts)
	return s, w.durable(ctx, b)
}

// loadQueue takes the settings of one queue from the log.
func (w *Writer) loadQueue(name string, e Entry) {
	var s storedQueue
	if err := json.Unmarshal(e.Body, &s); err != nil || s.V < 1 || s.V > RecordVersion || module.ValidateID(name) != nil {
		w.slog.Warn("the settings of a queue are set aside", "module_id", name, "cause", "cannot be read")
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queueOf(name)
	q.settings, q.stored = s.QueueSettings, true
}
