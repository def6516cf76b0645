package task

import (
	"context"
	"strconv"
	"strings"

	"github.com/apbus/apbus/module"
)

const (
	defaultPage = 100
	maxPage     = 1000
	maxIDs      = 1000
)

// List returns one page of records, redacted; see [Service].
func (w *Writer) List(ctx context.Context, req ListRequest) (Page, error) {
	if req.Limit < 0 || req.Limit > maxPage {
		return Page{}, bad("limit", "must be between 1 and 1000")
	}
	if req.Limit == 0 {
		req.Limit = defaultPage
	}
	s, err := newScan(req.Filter, req.Cursor, req.NewestFirst)
	if err != nil {
		return Page{}, err
	}
	if err := w.askHosts(ctx, s); err != nil {
		return Page{}, err
	}
	sights, more, unreadable, err := w.scanPage(ctx, s, req.Limit)
	if err != nil {
		return Page{}, err
	}
	page := Page{Tasks: make([]Record, 0, len(sights)), Unreadable: unreadable}
	if more {
		page.Cursor = s.cursor()
	}
	w.prefetch(ctx, sights)
	for _, v := range sights {
		r, err := w.show(ctx, v)
		switch e := module.AsError(err); {
		case e != nil && e.Code == module.CodeTaskExpired:
			continue // it went meanwhile
		case err != nil:
			return Page{}, err
		}
		page.Tasks = append(page.Tasks, r)
	}
	return page, w.still()
}

// askHosts finds out about the hosts of what is queued where the filter depends on
// it.
func (w *Writer) askHosts(ctx context.Context, s *scan) error {
	if s.Detail != Blocked && s.Detail != Queued {
		return nil
	}
	if err := w.enter(ctx); err != nil {
		return err
	}
	var ids []string
	for id, q := range w.queues {
		if q.count[inQueued] > 0 && (s.ModuleID == "" || s.ModuleID == id) {
			ids = append(ids, id)
		}
	}
	w.mu.Unlock()
	for _, id := range ids {
		w.shapes.of(id)
	}
	return nil
}

// prefetch reads the records of a page at once.
func (w *Writer) prefetch(ctx context.Context, sights []sight) {
	var items []*item
	var at []int
	for i, v := range sights {
		if v.rec == nil {
			items, at = append(items, v.it), append(at, i)
		}
	}
	if len(items) < 2 {
		return
	}
	recs, errs := w.fetchEach(ctx, items, false)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range recs {
		if errs[i] == nil {
			sights[at[i]].rec, sights[at[i]].batch = r, w.settled(items[i].dirty)
		}
	}
}

// scan walks the index in the order of submission, a chunk at a time, so that
// nobody waits for a long one.
type scan struct {
	Filter
	newest bool
	last   int64 // order of the item looked at last
	begun  bool
	ids    map[taskID]bool
}

func newScan(f Filter, cursor string, newest bool) (*scan, error) {
	s := &scan{Filter: f, newest: newest}
	switch {
	case f.Status != "" && !f.Status.Valid():
		return nil, bad("status", "must be one of pending, running, completed, failed, cancelled")
	case !f.Detail.Valid():
		return nil, bad("detail", "is not known")
	case len(f.IDs) > maxIDs:
		return nil, bad("ids", "must be at most 1000")
	case len(f.Query) > maxKey:
		return nil, bad("q", "is too long")
	}
	if f.Parent != "" {
		if _, ok := parseTaskID(f.Parent); !ok {
			return nil, bad("parent", "is not the ID of a task")
		}
	}
	for _, id := range f.IDs {
		t, ok := parseTaskID(id)
		if !ok {
			return nil, notFound(id)
		}
		if s.ids == nil {
			s.ids = make(map[taskID]bool)
		}
		s.ids[t] = true
	}
	if cursor != "" {
		dir, at, ok := strings.Cut(cursor, "-")
		last, err := strconv.ParseInt(at, 36, 64)
		if !ok || err != nil || dir != s.direction() {
			return nil, bad("cursor", "does not belong to this list")
		}
		s.last, s.begun = last, true
	}
	return s, nil
}

func (s *scan) direction() string {
	if s.newest {
		return "n"
	}
	return "o"
}

func (s *scan) cursor() string { return s.direction() + "-" + strconv.FormatInt(s.last, 36) }

// base is the shortest list that holds everything selected. w is locked.
func (w *Writer) base(s *scan) []*item {
	var list ordered
	switch {
	case s.ids != nil || s.Parent != "":
		found := w.named(s)
		return found
	case s.ModuleID != "":
		q := w.queues[s.ModuleID]
		if q == nil {
			return nil
		}
		list = q.all
	default:
		list = w.all
	}
	return list.items
}

// named returns the items that a filter names one by one, in order. w is locked.
func (w *Writer) named(s *scan) []*item {
	var list ordered
	add := func(it *item) {
		i := list.after(it.order)
		list.items = append(list.items, nil)
		copy(list.items[i+1:], list.items[i:])
		list.items[i] = it
	}
	if s.ids != nil {
		for id := range s.ids {
			if it := w.items.get(id); it != nil {
				add(it)
			}
		}
		return list.items
	}
	parent, _ := parseTaskID(s.Parent)
	return append(list.items, w.children[parent]...) // in order already
}

// next returns up to a chunk of selected items, and false when the list has ended.
// w is locked.
func (w *Writer) next(s *scan, want int) (found []*item, more bool) {
	items := w.base(s)
	list := ordered{items: items}
	looked := 0
	visit := func(it *item) bool {
		if len(found) == want || looked == scanChunk {
			return false
		}
		looked++
		s.last, s.begun = it.order, true
		if !it.gone && w.selects(s, it) {
			found = append(found, it)
		}
		return true
	}
	if s.newest {
		i := len(items)
		if s.begun {
			i = list.after(s.last - 1)
		}
		for i--; i >= 0; i-- {
			if !visit(items[i]) {
				return found, true
			}
		}
		return found, false
	}
	i := 0
	if s.begun {
		i = list.after(s.last)
	}
	for ; i < len(items); i++ {
		if !visit(items[i]) {
			return found, true
		}
	}
	return found, false
}

// selects reports whether the filter selects it. w is locked.
func (w *Writer) selects(s *scan, it *item) bool {
	if s.Status != "" && it.place.status() != s.Status || s.ModuleID != "" && it.q.id != s.ModuleID {
		return false
	}
	switch s.Detail {
	case "":
	case Blocked:
		if it.place != inAside && w.blockedBy(it) == "" {
			return false
		}
	case Queued:
		if it.place != inQueued || w.blockedBy(it) != "" {
			return false
		}
	default:
		if it.place.detail() != s.Detail {
			return false
		}
	}
	if s.Query == "" || strings.Contains(it.q.id, s.Query) || strings.Contains(it.id.String(), s.Query) {
		return true
	}
	return it.rec != nil && (strings.Contains(it.rec.IdempotencyKey, s.Query) || strings.Contains(it.rec.Schedule, s.Query))
}

// scanPage collects what is selected until the page is full.
func (w *Writer) scanPage(ctx context.Context, s *scan, limit int) (page []sight, more bool, unreadable int, err error) {
	for {
		if err := w.enter(ctx); err != nil {
			return nil, false, 0, err
		}
		found, rest := w.next(s, limit-len(page))
		for _, it := range found {
			page = append(page, w.look(it))
		}
		unreadable = w.aside
		rest = rest && w.possible(s)
		w.mu.Unlock()
		if !rest || len(page) == limit {
			return page, rest, unreadable, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, false, 0, unanswered(ctx)
		}
	}
}

// possible reports whether the index has anything of the kind that is selected at
// all, so that a long list is not walked for nothing. w is locked.
func (w *Writer) possible(s *scan) bool {
	if s.Status == "" && s.Detail == "" {
		return true
	}
	for _, q := range w.queues {
		if s.ModuleID != "" && q.id != s.ModuleID {
			continue
		}
		for p := range places {
			if q.count[p] == 0 || s.Status != "" && p.status() != s.Status {
				continue
			}
			if s.Detail == "" || p.detail() == s.Detail || s.Detail == Blocked && (p == inQueued || p == inAside) {
				return true
			}
		}
	}
	return false
}
