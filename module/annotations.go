package module

import "maps"

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
	CacheTTL        int64 // seconds
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
		"cache_ttl": a.CacheTTL, "cache_key_fields": keys, "pagination_style": style,
		"extra": extra,
	}
}

// AnnotationsFromMap reads the wire form. Unknown keys at the root fold into
// Extra, where a nested value of the same name wins; a canonical name inside
// extra loses to the real field; a malformed value is dropped and its default
// stays (decision D-115).
func AnnotationsFromMap(m map[string]any) Annotations {
	a := Annotations{Extra: map[string]any{}}
	flags := map[string]*bool{
		"readonly": &a.Readonly, "destructive": &a.Destructive, "idempotent": &a.Idempotent,
		"requires_approval": &a.RequiresApproval, "streaming": &a.Streaming,
		"cacheable": &a.Cacheable, "paginated": &a.Paginated,
	}
	nested, _ := m["extra"].(map[string]any)
	for k, v := range m {
		if dst, ok := flags[k]; ok {
			if b, isBool := v.(bool); isBool {
				*dst = b
			}
			continue
		}
		switch k {
		case "extra":
		case "discoverable":
			if b, ok := v.(bool); ok {
				a.Hidden = !b
			}
		case "open_world":
			if b, ok := v.(bool); ok {
				a.ClosedWorld = !b
			}
		case "cache_ttl":
			if n, ok := v.(int64); ok && n >= 0 {
				a.CacheTTL = n
			}
		case "cache_key_fields":
			a.CacheKeyFields = stringList(v)
		case "pagination_style":
			if s, ok := v.(string); ok {
				a.PaginationStyle = s
			}
		default:
			a.Extra[k] = v
		}
	}
	canonical := Annotations{}.Map()
	for k, v := range nested {
		if _, clash := canonical[k]; !clash {
			a.Extra[k] = v
		}
	}
	return a
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
