package loop

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// schemaDrift finds callers and modules that do not agree on the shape of inputs or
// outputs.
type schemaDrift struct{}

func (schemaDrift) Manifest() Manifest {
	return Manifest{
		ID: "exec.schema_drift/1", Title: "Schema drift", Cadence: "fast", DefaultOn: true,
		Description: "A caller whose inputs keep failing at one field, or a module whose output does not fit its own schema.",
		Types:       []Type{TypeCall, TypeStream},
		Params: []Param{
			intParam("min_input", 5, 1, 10_000, "how many refused inputs at one field, of one caller"),
			ratioParam("min_share", 0.3, "in which share of the caller's calls"),
			intParam("min_output", 3, 1, 10_000, "how many outputs that do not fit"),
			windowParam(7 * day),
		},
		Templates: map[string]string{
			"exec.schema_input":  "Inputs for {module} from {callers} fail at {fields}, {count} times",
			"exec.schema_output": "Module {module} gave {count} outputs that do not fit its schema, at {fields}",
		},
	}
}

func (schemaDrift) Begin(in Input) Pass {
	p := in.Params
	return &driftPass{
		w: windowOf(in.Now, p.Duration("window_ms")), minInput: int(p.Int("min_input")),
		minOutput: int(p.Int("min_output")), minShare: p.Float("min_share"),
		calls: newTable[int](maxCells), inputs: newTable[driftCell](maxCells), outputs: newTable[driftOutput](maxCells / 4),
	}
}

type driftCell struct {
	n      int
	sample sample
}

// maxFields is how many fields of one module's outputs are told apart.
const maxFields = 256

type driftOutput struct {
	n      int
	fields table[int]
	sample sample
}

type driftPass struct {
	w                   window
	minInput, minOutput int
	minShare            float64
	calls               table[int]       // module, caller
	inputs              table[driftCell] // module, caller, field
	outputs             table[driftOutput]
	key                 []byte
}

func (p *driftPass) Since() time.Time { return p.w.since() }

func (p *driftPass) Add(r *Record) {
	e := r.Evidence
	if !p.w.holds(r) || e.Origin != "" || e.MadeHere {
		return
	}
	caller := callerOf(e)
	p.key = joinKey(p.key[:0], e.ModuleID, caller)
	if n := p.calls.at(p.key); n != nil {
		*n++
	}
	if e.Code != module.CodeSchemaValidation && e.Code != module.CodeSchemaUnionNoMatch && e.Code != module.CodeSchemaUnionAmbiguous {
		return
	}
	switch e.Side {
	case contextwire.SideInput:
		for i, field := range e.Fields {
			if has(e.Fields[:i], field) {
				continue
			}
			p.key = joinKey(p.key[:0], e.ModuleID, caller, fieldName(field))
			if c := p.inputs.at(p.key); c != nil {
				c.n++
				c.sample.add(r)
			}
		}
	case contextwire.SideOutput:
		c := p.outputs.at([]byte(e.ModuleID))
		if c == nil {
			return
		}
		if c.fields.cells == nil {
			c.fields = newTable[int](maxFields)
		}
		c.n++
		c.sample.add(r)
		for _, field := range e.Fields {
			if n := c.fields.at([]byte(fieldName(field))); n != nil {
				*n++
			}
		}
	}
}

func (p *driftPass) cuts() []int64 { return p.w.cuts() }

func (p *driftPass) merge(o mergeable) {
	with := o.(*driftPass)
	p.calls.merge(&with.calls, sum)
	p.inputs.merge(&with.inputs, func(c, o *driftCell) {
		c.n += o.n
		c.sample.merge(&o.sample)
	})
	p.outputs.merge(&with.outputs, func(c, o *driftOutput) {
		if c.fields.cells == nil {
			c.fields = newTable[int](maxFields)
		}
		c.n += o.n
		c.sample.merge(&o.sample)
		c.fields.merge(&o.fields, sum)
	})
}

func (p *driftPass) settle() int {
	return p.calls.settle(nil) + p.inputs.settle(func(c *driftCell) int { return c.sample.settle() }) +
		p.outputs.settle(func(c *driftOutput) int { return c.sample.settle() + c.fields.settle(nil) })
}

// fieldName is a path as it is shown: list indexes are one, since they are not
// fields of their own, and the whole value has a name.
func fieldName(path string) string {
	if path == "" || path == "/" {
		return "(the whole)"
	}
	parts := strings.Split(Cap(clean(path), 80), "/")
	for i, part := range parts {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

type driftFinding struct {
	n               int
	callers, fields tally
	sample          sample
}

func (p *driftPass) Drafts(context.Context) ([]Draft, error) {
	found := map[string]*driftFinding{}
	for _, key := range p.inputs.sorted() {
		c := p.inputs.cells[key]
		parts := strings.SplitN(key, string(rune(unitSeparator)), 3)
		id, caller, field := parts[0], parts[1], parts[2]
		calls := p.calls.cells[id+string(rune(unitSeparator))+caller]
		if c.n < p.minInput || calls == nil || float64(c.n) < p.minShare*float64(*calls) {
			continue
		}
		f := found[id]
		if f == nil {
			f = &driftFinding{callers: tally{}, fields: tally{}}
			found[id] = f
		}
		f.n += c.n
		f.callers[caller] += c.n
		f.fields[field] += c.n
		f.sample.merge(&c.sample)
	}
	var drafts []Draft
	for _, id := range p.outputs.sorted() {
		c := p.outputs.cells[id]
		if c.n < p.minOutput {
			continue
		}
		fields := tally{}
		for _, name := range c.fields.sorted() {
			fields[name] = *c.fields.cells[name]
		}
		drafts = append(drafts, p.draft(id, SeverityHigh, c.sample.hashes(), Summary{"exec.schema_output", map[string]any{
			"module": shown(id), "count": int64(c.n), "fields": listed(fields.names()),
		}}))
		delete(found, id)
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		f := found[id]
		drafts = append(drafts, p.draft(id, SeverityMedium, f.sample.hashes(), Summary{"exec.schema_input", map[string]any{
			"module": shown(id), "count": int64(f.n), "fields": listed(f.fields.names()), "callers": listed(f.callers.names()),
		}}))
	}
	return ordered(drafts), nil
}

func (p *driftPass) draft(id string, s Severity, evidence []string, summary Summary) Draft {
	return Draft{
		Target: "entity:lessons/" + targetName(id), Action: ActionFlag, Severity: s, Summary: summary,
		Evidence: evidence, EvidenceQuery: queryOf("call,stream", id, string(module.CodeSchemaValidation), p.w),
		Confidence: 0.8, Importance: 0.5,
	}
}
