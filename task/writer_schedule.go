package task

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/apbus/apbus/module"
)

// scheduled is a schedule with its times worked out.
type scheduled struct {
	Schedule
	plan   plan
	dirty  uint64
	firing bool
}

const (
	maxSchedules = 10_000
	// lateAfter is how late a time may be served without counting as missed: it covers a
	// change of writers.
	lateAfter = 30 * time.Second
)

// PutSchedule creates or replaces a schedule; see [Service].
func (w *Writer) PutSchedule(ctx context.Context, spec ScheduleSpec, by string, replace bool) (Schedule, error) {
	p, err := w.checkSchedule(&spec)
	if err != nil {
		return Schedule{}, err
	}
	if err := w.enter(ctx); err != nil {
		return Schedule{}, err
	}
	old := w.schedules[spec.Name]
	switch {
	case old != nil && !replace:
		w.mu.Unlock()
		return Schedule{}, module.Errorf(module.CodeTaskScheduleExists, "a schedule of this name exists").WithDetail("name", spec.Name)
	case old == nil && len(w.schedules) >= maxSchedules:
		w.mu.Unlock()
		return Schedule{}, module.Errorf(module.CodeTaskLimitExceeded, "there are %d schedules, which is the limit", maxSchedules)
	}
	m := w.moment()
	s := &scheduled{plan: p}
	if old != nil {
		s.Schedule = old.Schedule
	} else {
		s.CreatedAt, s.CreatedBy = m.now, by
	}
	s.V, s.ScheduleSpec = RecordVersion, spec
	s.NextAt = At(p.next(m.now.Time()))
	w.schedules[spec.Name] = s
	b := w.room(1)
	w.writeSchedule(b, s)
	poke(w.rearm)
	shown := w.showSchedule(s.Schedule)
	w.unlockAndKick()
	return shown, w.durable(ctx, b)
}

// checkSchedule judges a spec, and its task as if it were submitted now.
func (w *Writer) checkSchedule(spec *ScheduleSpec) (plan, error) {
	if !validName(spec.Name) {
		return plan{}, bad("name", "must be 1 to 128 of letters, digits, _ and -")
	}
	switch spec.Missed {
	case "":
		spec.Missed = MissedSkip
	case MissedSkip, MissedOnce:
	default:
		return plan{}, bad("missed", "must be skip or once")
	}
	p, err := parsePlan(spec.Cron, spec.TimeZone)
	if err != nil {
		return plan{}, err
	}
	if p.next(time.Now()).IsZero() {
		return plan{}, bad("cron", "names a time that never comes")
	}
	if spec.Task.RunAt != "" || spec.Task.IdempotencyKey != "" {
		return plan{}, bad("task", "must have neither run_at nor idempotency_key")
	}
	lim := submitLimits{maxInput: w.opts.MaxInput, queueWait: w.opts.QueueWait}
	_, err = prepare(spec.Task, w.shapes.of(spec.Task.ModuleID), lim)
	return p, err
}

func validName(name string) bool {
	if name == "" || len(name) > 128 {
		return false
	}
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// Schedule returns one schedule; see [Service].
func (w *Writer) Schedule(ctx context.Context, name string) (Schedule, error) {
	if err := w.enter(ctx); err != nil {
		return Schedule{}, err
	}
	s := w.schedules[name]
	if s == nil {
		w.mu.Unlock()
		return Schedule{}, noSchedule(name)
	}
	shown, b := s.Schedule, w.settled(s.dirty)
	w.mu.Unlock()
	if err := w.durable(ctx, b); err != nil {
		return Schedule{}, err
	}
	return w.showSchedule(shown), w.still()
}

// Schedules returns all schedules by name; see [Service].
func (w *Writer) Schedules(ctx context.Context) ([]Schedule, error) {
	if err := w.enter(ctx); err != nil {
		return nil, err
	}
	list := make([]Schedule, 0, len(w.schedules))
	var last uint64
	for _, name := range slices.Sorted(maps.Keys(w.schedules)) {
		s := w.schedules[name]
		list, last = append(list, s.Schedule), max(last, s.dirty)
	}
	b := w.settled(last)
	w.mu.Unlock()
	if err := w.durable(ctx, b); err != nil {
		return nil, err
	}
	for i := range list {
		list[i] = w.showSchedule(list[i])
	}
	return list, w.still()
}

// DeleteSchedule removes a schedule; see [Service].
func (w *Writer) DeleteSchedule(ctx context.Context, name string) error {
	if err := w.enter(ctx); err != nil {
		return err
	}
	if w.schedules[name] == nil {
		w.mu.Unlock()
		return noSchedule(name)
	}
	delete(w.schedules, name)
	b := w.room(1)
	b.put(Entry{Key: KeySchedule + name, Delete: true})
	w.unlockAndKick()
	return w.durable(ctx, b)
}

func noSchedule(name string) error {
	return module.Errorf(module.CodeTaskScheduleNotFound, "no schedule has this name").WithDetail("name", clip(name))
}

// showSchedule masks the inputs.
func (w *Writer) showSchedule(s Schedule) Schedule {
	by := redactor{w.opts.Redactor}
	s.Task.Inputs = by.object(w.shapes.recall(s.Task.ModuleID).input, s.Task.Inputs)
	s.Task.Context = by.object(nil, s.Task.Context)
	return s
}

// writeSchedule puts a schedule into b. w is locked.
func (w *Writer) writeSchedule(b *batch, s *scheduled) {
	body, err := json.Marshal(s.Schedule)
	if err != nil {
		w.slog.Error("a schedule cannot be stored", "name", s.Name, "cause", err)
		return
	}
	b.put(Entry{Key: KeySchedule + s.Name, Body: body})
	s.dirty = b.n
}

// loadSchedule takes one schedule from the log.
func (w *Writer) loadSchedule(name string, e Entry) {
	s := &scheduled{}
	err := json.Unmarshal(e.Body, &s.Schedule)
	if err == nil {
		s.plan, err = parsePlan(s.Cron, s.TimeZone)
	}
	if err != nil || s.V < 1 || s.V > RecordVersion || s.Name != name {
		w.slog.Warn("a schedule is set aside", "name", name, "cause", "cannot be read")
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.schedules[name] = s
}

// dueSchedules returns the names of the schedules whose time has come. w is locked.
func (w *Writer) dueSchedules(m moment) []string {
	var due []string
	for name, s := range w.schedules {
		if !s.Paused && !s.firing && s.NextAt != 0 && s.NextAt <= m.now {
			s.firing = true
			due = append(due, name)
		}
	}
	slices.Sort(due)
	return due
}

// fireSchedule submits the task of a schedule and moves it on to its next time in
// one batch. Where a log keeps a batch in parts, the key of the task keeps a time
// from being served twice (rule 9).
func (w *Writer) fireSchedule(ctx context.Context, name string) {
	w.mu.Lock()
	s := w.schedules[name]
	if s == nil {
		w.mu.Unlock()
		return
	}
	spec := s.ScheduleSpec
	w.mu.Unlock()
	lim := submitLimits{maxInput: w.opts.MaxInput, queueWait: w.opts.QueueWait}
	at := spec.Task
	at.IdempotencyKey = "schedule" // for the digest; the key itself is made below
	d, err := prepare(at, w.shapes.of(at.ModuleID), lim)

	w.mu.Lock()
	defer w.unlockAndKick()
	if !w.serving || w.schedules[name] != s {
		return // replaced or deleted meanwhile
	}
	s.firing = false
	m := w.moment()
	due := s.NextAt
	missed, last := s.plan.missed(due.Time(), m.now.Time())
	late := m.now.Sub(At(last)) > lateAfter
	if s.Missed == MissedOnce || !late {
		missed-- // one of them is served
		due = At(last)
	} else {
		d, err = nil, nil
	}
	s.MissedCount += int64(max(missed, 0))
	s.NextAt = At(s.plan.next(m.now.Time()))
	b := w.room(2)
	if d != nil {
		d.rec.IdempotencyKey = "schedule " + name + " " + due.Time().Format(time.RFC3339)
		var it *item
		var dup bool
		if it, dup, err = w.admit(d); err == nil {
			if !dup {
				it = w.create(b, d, name)
			}
			s.LastTask, s.LastAt, s.LastError = it.id.String(), due, nil
			s.Fired++
		}
	}
	if err != nil {
		s.LastAt, s.LastError = due, Fail(err)
		w.slog.Warn("a schedule could not submit its task", "name", name, "module_id", spec.Task.ModuleID, "cause", err)
	}
	w.writeSchedule(b, s)
}
