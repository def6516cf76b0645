package approval

import (
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/apbus/apbus/module"
)

// newRecord is the request as reviewers see it: redacted inputs, and what the
// module says would change.
func (d *Durable) newRecord(r *Request, b Binding) Record {
	rec := Record{
		ID: module.NewTraceID(), State: StatePending, Binding: b,
		Description: r.Description, Tags: slices.Clone(r.Tags),
		Enrichers:   slices.Clone(r.Enrichers),
		Annotations: r.Annotations, Reason: r.Reason, TokenExpires: d.o.TokenExpiry,
	}
	if c := r.Context; c != nil {
		rec.TraceID, rec.CallChain = c.TraceID(), c.CallChain()
	}
	rec.Changes, rec.Warnings = d.introspect(r)
	shown, cut := shorten(r.RedactedArguments())
	if rec.Inputs, _ = shown.(map[string]any); cut > 0 {
		rec.Warnings = append(rec.Warnings, fmt.Sprintf("long texts of the inputs are shown without their last %d bytes in all", cut))
	}
	rec.CreatedAt = time.Now().UTC()
	rec.ExpiresAt = rec.CreatedAt.Add(d.o.Expiry)
	return rec
}

// introspect asks the module what would change; its panic must not decide
// anything.
func (d *Durable) introspect(r *Request) (changes []module.Change, warnings []string) {
	guarded := func(f func()) {
		defer func() {
			if recover() != nil {
				d.o.Logger.Warn("preview for an approval request panicked", "module_id", r.ModuleID)
			}
		}()
		f()
	}
	if r.Preview != nil {
		guarded(func() { changes = r.Preview() })
	}
	if r.Preflight != nil {
		guarded(func() { warnings = slices.Clone(r.Preflight()) })
	}
	return changes, warnings
}

// maxShownText is how many bytes of one text a reviewer is shown. The digest is
// over all of it.
const maxShownText = 4 << 10

// shorten returns v with its long texts cut, and how many bytes that took; what
// is not changed is shared.
func shorten(v any) (short any, cut int) {
	switch v := v.(type) {
	case string:
		if len(v) <= maxShownText {
			return v, 0
		}
		end := maxShownText
		for end > 0 && !utf8.RuneStart(v[end]) {
			end--
		}
		return v[:end] + "…", len(v) - end
	case map[string]any:
		out := v
		for k, e := range v {
			s, n := shorten(e)
			if n == 0 {
				continue
			}
			if cut == 0 {
				out = maps.Clone(v)
			}
			out[k] = s
			cut += n
		}
		return out, cut
	case []any:
		out := v
		for i, e := range v {
			s, n := shorten(e)
			if n == 0 {
				continue
			}
			if cut == 0 {
				out = slices.Clone(v)
			}
			out[i] = s
			cut += n
		}
		return out, cut
	}
	return v, 0
}
