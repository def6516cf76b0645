package module

import (
	"log/slog"
	"maps"
	"math"
)

// Annotations say how a module behaves (protocol §4.4). They are declarative;
// requires_approval and destructive also steer the approval gate.
//
// Discoverable and OpenWorld default to true in the protocol, so the Go zero
// value spells their opposites.
type Annotations struct {
	Readonly         bool
	Destructive      bool
	Idempotent       bool
	RequiresApproval bool
	Streaming        bool
	Cacheable        bool
	Paginated        bool
	// Hidden is discoverable: false.
	Hidden bool
	// ClosedWorld is open_world: false.
	ClosedWorld     bool
	CacheTTL        int64 // seconds, never negative on the wire
	CacheKeyFields  []string
	PaginationStyle string // "cursor" when empty
	// Extra holds annotations this version does not know, nested on the wire.
	Extra map[string]any
}

// Map returns the wire form, every field and a nested extra included.
func (a Annotations) Map() map[string]any {
	style := a.PaginationStyle
	if style == "" {
		style = "cursor"
	}
	var keys any
	if a.CacheKeyFields != nil {
		list := make([]any, len(a.CacheKeyFields))
		for i, k := range a.CacheKeyFields {
			list[i] = k
		}
		keys = list
	}
	extra := maps.Clone(a.Extra)
	if extra == nil {
		extra = map[string]any{}
	}
	return map[string]any{
		"readonly": a.Readonly, "destructive": a.Destructive, "idempotent": a.Idempotent,
		"requires_approval": a.RequiresApproval, "streaming": a.Streaming,
		"cacheable": a.Cacheable, "paginated": a.Paginated,
		"discoverable": !a.Hidden, "open_world": !a.ClosedWorld,
		"cache_ttl": max(a.CacheTTL, 0), "cache_key_fields": keys, "pagination_style": style,
		"extra": extra,
	}
}

// AnnotationsFromMap reads the wire form. Unknown keys at the root fold into
// Extra, where a nested value of the same name wins; a canonical name inside extra
// loses to the real field; a malformed value is dropped and its default stays, a
// negative cache_ttl is 0 (decision D-115). What is dropped is logged as WARN by
// its key. Extra is nil when there is nothing in it.
func AnnotationsFromMap(m map[string]any) Annotations {
	var a Annotations
	extra := map[string]any{}
	for k, v := range m {
		known, ok := a.set(k, v)
		switch {
		case !known && k != "extra":
			extra[k] = v
		case known && !ok:
			slog.Default().Warn("annotation is malformed, dropped", slog.String("annotation", k))
		}
	}
	switch nested := m["extra"].(type) {
	case nil:
	case map[string]any:
		var ignored Annotations
		for k, v := range nested {
			if known, _ := ignored.set(k, nil); known {
				slog.Default().Warn("annotation inside extra has a canonical name, dropped", slog.String("annotation", k))
				continue
			}
			extra[k] = v
		}
	default:
		slog.Default().Warn("annotation is malformed, dropped", slog.String("annotation", "extra"))
	}
	if len(extra) > 0 {
		a.Extra = extra
	}
	return a
}

// set sets the annotation of a canonical name; ok is false when v is malformed.
func (a *Annotations) set(name string, v any) (known, ok bool) {
	flag := func(dst *bool, on bool) (bool, bool) {
		b, ok := v.(bool)
		if ok {
			*dst = b == on
		}
		return true, ok
	}
	switch name {
	case "readonly":
		return flag(&a.Readonly, true)
	case "destructive":
		return flag(&a.Destructive, true)
	case "idempotent":
		return flag(&a.Idempotent, true)
	case "requires_approval":
		return flag(&a.RequiresApproval, true)
	case "streaming":
		return flag(&a.Streaming, true)
	case "cacheable":
		return flag(&a.Cacheable, true)
	case "paginated":
		return flag(&a.Paginated, true)
	case "discoverable":
		return flag(&a.Hidden, false)
	case "open_world":
		return flag(&a.ClosedWorld, false)
	case "cache_ttl":
		n, ok := wholeNumber(v)
		a.CacheTTL = max(n, 0)
		return true, ok && n >= 0
	case "cache_key_fields":
		a.CacheKeyFields = stringList(v)
		return true, v == nil || a.CacheKeyFields != nil
	case "pagination_style":
		a.PaginationStyle, ok = v.(string)
		return true, ok
	}
	return false, false
}

// wholeNumber reads an integer, which a peer may have written as 4.0.
func wholeNumber(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case float64:
		if n == math.Trunc(n) && math.Abs(n) < 1<<63 {
			return int64(n), true
		}
	}
	return 0, false
}

// stringList returns nil when v is not a list of strings only.
func stringList(v any) []string {
	list, ok := v.([]any)
	if !ok {
		return nil
	}
	out := make([]string, len(list))
	for i, e := range list {
		if out[i], ok = e.(string); !ok {
			return nil
		}
	}
	return out
}
