package middleware

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/apbus/apbus/module"
)

// HistoryConfig configures [ErrorHistory]. Zero fields have the protocol's
// defaults.
type HistoryConfig struct {
	// MaxPerModule is how many different errors of one module are kept, 50 by
	// default.
	MaxPerModule int
	// MaxTotal is how many are kept in all, 1000 by default.
	MaxTotal int
}

// maxHistoryText bounds a message that is kept; the fingerprint is of the whole.
const maxHistoryText = 4096

// ErrorEntry is one error with all its happenings.
type ErrorEntry struct {
	ModuleID string
	Code     module.Code
	// Message and AIGuidance are those of the first happening.
	Message, AIGuidance         string
	Count                       int64
	FirstOccurred, LastOccurred time.Time
	Timestamp                   time.Time // of the first happening's error
	Fingerprint                 string
	changed                     bool // since the latest Save
	stored                      bool // by a Save, or came from Load
	inModule, inAll             *list.Element
}

// ErrorHistory remembers the latest coded errors of each module. Errors with one
// fingerprint (see [module.Fingerprint]) are one entry with a count; past a limit
// the entry that happened longest ago goes. Safe for concurrent use.
type ErrorHistory struct {
	cfg HistoryConfig

	mu      sync.Mutex
	entries map[string]*ErrorEntry // by fingerprint
	all     *list.List             // of *ErrorEntry, latest happening first
	modules map[string]*list.List  // the same of each module
	gone    []string               // evicted since the latest Save
}

// NewErrorHistory makes an empty one.
func NewErrorHistory(cfg HistoryConfig) *ErrorHistory {
	if cfg.MaxPerModule <= 0 {
		cfg.MaxPerModule = 50
	}
	if cfg.MaxTotal <= 0 {
		cfg.MaxTotal = 1000
	}
	return &ErrorHistory{cfg: cfg, entries: map[string]*ErrorEntry{}, all: list.New(), modules: map[string]*list.List{}}
}

// Record notes an error of a module. Only coded errors are kept, others are
// ignored. It never fails.
func (h *ErrorHistory) Record(moduleID string, err error) {
	e := module.AsError(err)
	if e == nil {
		return
	}
	fingerprint := module.Fingerprint(e.Code, moduleID, e.Message)
	now := time.Now().UTC()
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry := h.entries[fingerprint]; entry != nil {
		entry.Count++
		entry.LastOccurred, entry.changed = now, true
		h.all.MoveToFront(entry.inAll)
		h.modules[moduleID].MoveToFront(entry.inModule)
		return
	}
	at := e.Timestamp
	if at.IsZero() {
		at = now
	}
	h.addLocked(&ErrorEntry{
		ModuleID: moduleID, Code: e.Code, Message: shorten(e.Message), AIGuidance: shorten(e.AIGuidance), Count: 1,
		FirstOccurred: now, LastOccurred: now, Timestamp: at.UTC(), Fingerprint: fingerprint, changed: true,
	})
}

// addLocked puts a new entry in front and makes room.
func (h *ErrorHistory) addLocked(e *ErrorEntry) {
	of := h.modules[e.ModuleID]
	if of == nil {
		of = list.New()
		h.modules[e.ModuleID] = of
	}
	h.entries[e.Fingerprint] = e
	e.inAll, e.inModule = h.all.PushFront(e), of.PushFront(e)
	if of.Len() > h.cfg.MaxPerModule {
		h.removeLocked(of.Back().Value.(*ErrorEntry))
	}
	if h.all.Len() > h.cfg.MaxTotal {
		h.removeLocked(h.all.Back().Value.(*ErrorEntry))
	}
}

func (h *ErrorHistory) removeLocked(e *ErrorEntry) {
	delete(h.entries, e.Fingerprint)
	h.all.Remove(e.inAll)
	of := h.modules[e.ModuleID]
	of.Remove(e.inModule)
	if of.Len() == 0 {
		delete(h.modules, e.ModuleID)
	}
	if e.stored {
		h.gone = append(h.gone, e.Fingerprint)
	}
}

// Get returns the errors of a module, latest happening first, at most limit, all
// for 0. A module without errors has none.
func (h *ErrorHistory) Get(moduleID string, limit int) []ErrorEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return copied(h.modules[moduleID], limit)
}

// All returns the errors of every module, latest happening first, at most limit,
// all for 0.
func (h *ErrorHistory) All(limit int) []ErrorEntry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return copied(h.all, limit)
}

// Clear forgets the errors of a module, all for "".
func (h *ErrorHistory) Clear(moduleID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.entries {
		if moduleID == "" || e.ModuleID == moduleID {
			h.removeLocked(e)
		}
	}
}

func copied(l *list.List, limit int) []ErrorEntry {
	if l == nil {
		return nil
	}
	n := l.Len()
	if limit > 0 {
		n = min(n, limit)
	}
	out := make([]ErrorEntry, 0, n)
	for el := l.Front(); el != nil && len(out) < n; el = el.Next() {
		e := *el.Value.(*ErrorEntry)
		e.inAll, e.inModule = nil, nil
		out = append(out, e)
	}
	return out
}

// historyTime is the form of every time of an entry (decision D-120).
const historyTime = "2006-01-02T15:04:05.000Z"

// Map returns the wire form; ai_guidance is nil when there is none.
func (e ErrorEntry) Map() map[string]any {
	return map[string]any{
		"module_id": e.ModuleID, "code": string(e.Code), "message": e.Message, "ai_guidance": nullText(e.AIGuidance),
		"count": e.Count, "fingerprint": e.Fingerprint,
		"first_occurred": e.FirstOccurred.UTC().Format(historyTime),
		"last_occurred":  e.LastOccurred.UTC().Format(historyTime),
		"timestamp":      e.Timestamp.UTC().Format(historyTime),
	}
}

// Save writes what changed since the latest Save to the namespace error_history of
// s, by fingerprint, and deletes what went. What could not be written stays to be
// written. One Save at a time.
func (h *ErrorHistory) Save(ctx context.Context, s Storage) error {
	h.mu.Lock()
	var changed []ErrorEntry
	for _, e := range h.entries {
		if e.changed {
			changed = append(changed, *e)
			e.changed, e.stored = false, true
		}
	}
	gone := h.gone
	h.gone = nil
	h.mu.Unlock()

	for i := range changed {
		if err := s.Save(ctx, StorageErrorHistory, changed[i].Fingerprint, changed[i].Map()); err != nil {
			h.unsaved(changed[i:], gone)
			return module.Wrap(module.CodeInternal, err, "error history could not be saved")
		}
	}
	for i, fingerprint := range gone {
		if h.again(fingerprint) {
			continue
		}
		if err := s.Delete(ctx, StorageErrorHistory, fingerprint); err != nil {
			h.unsaved(nil, gone[i:])
			return module.Wrap(module.CodeInternal, err, "error history could not be saved")
		}
	}
	return nil
}

// again reports whether an entry that went has come back. What is stored of its
// former self is its own from then on, to be deleted when it goes.
func (h *ErrorHistory) again(fingerprint string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[fingerprint]
	if e != nil {
		e.stored = true
	}
	return e != nil
}

func (h *ErrorHistory) unsaved(changed []ErrorEntry, gone []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range changed {
		if e := h.entries[changed[i].Fingerprint]; e != nil {
			e.changed = true
		}
	}
	h.gone = append(h.gone, gone...)
}

// Load adds what s has to an empty history, as at the start of a program; entries
// that are malformed, or known already, are left out.
func (h *ErrorHistory) Load(ctx context.Context, s Storage) error {
	stored, err := s.List(ctx, StorageErrorHistory, "")
	if err != nil {
		return module.Wrap(module.CodeInternal, err, "error history could not be loaded")
	}
	var entries []*ErrorEntry
	for _, v := range stored {
		if e, ok := historyEntry(v); ok {
			entries = append(entries, e)
		}
	}
	slices.SortStableFunc(entries, func(a, b *ErrorEntry) int { return a.LastOccurred.Compare(b.LastOccurred) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range entries {
		if h.entries[e.Fingerprint] == nil {
			h.addLocked(e)
		}
	}
	return nil
}

func historyEntry(v StorageEntry) (*ErrorEntry, bool) {
	text := func(key string) string { s, _ := v.Value[key].(string); return s }
	when := func(key string) time.Time {
		t, _ := time.Parse(historyTime, text(key)) // zero when malformed
		return t
	}
	count, _ := v.Value["count"].(int64)
	e := &ErrorEntry{
		ModuleID: text("module_id"), Code: module.Code(text("code")), Message: text("message"), AIGuidance: text("ai_guidance"),
		Count: count, FirstOccurred: when("first_occurred"), LastOccurred: when("last_occurred"), Timestamp: when("timestamp"),
		Fingerprint: v.Key, stored: true,
	}
	return e, e.ModuleID != "" && e.Code != "" && count > 0 && !e.LastOccurred.IsZero()
}

// shorten cuts text on a character.
func shorten(s string) string {
	if len(s) <= maxHistoryText {
		return s
	}
	cut := maxHistoryText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// RecordErrors is the middleware that feeds an [ErrorHistory] with every failed
// run, retried and recovered ones included. Cancellation is no error of the module.
type RecordErrors struct{ history *ErrorHistory }

var (
	_ EndHook = (*RecordErrors)(nil)
	_ Single  = (*RecordErrors)(nil)
)

// NewRecordErrors makes the middleware.
func NewRecordErrors(h *ErrorHistory) *RecordErrors { return &RecordErrors{history: h} }

// Name returns "error_history".
func (*RecordErrors) Name() string { return "error_history" }

// Priority returns 970.
func (*RecordErrors) Priority() int { return 970 }

// Single marks that one is enough: two would count twice.
func (*RecordErrors) Single() {}

// End records the failure of the run.
func (m *RecordErrors) End(_ context.Context, call *Call, err *module.Error) {
	if err == nil {
		err = call.Failure()
	}
	if err != nil && err.Code != module.CodeExecutionCancelled {
		m.history.Record(call.ModuleID, err)
	}
}
