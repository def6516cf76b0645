package system

import (
	"slices"
	"strings"
	"time"
)

func orElse[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// nullable is s, or null for an empty one.
func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// timestamp is ISO 8601 in UTC, to the millisecond (decision D-120).
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func stringsOf(list []string) []any {
	out := make([]any, len(list))
	for i, s := range list {
		out[i] = s
	}
	return out
}

func sortStrings(list []any) {
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
}
