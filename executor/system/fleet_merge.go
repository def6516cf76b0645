package system

import (
	"cmp"
	"maps"
	"slices"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// fleetSchema is the output schema of a module as the fleet answers it; node is that
// of one node's output.
func fleetSchema(g Group, id string, node map[string]any) map[string]any {
	peer := map[string]any{"node": text(), "boot": text()}
	row := func(more map[string]any, optional ...string) map[string]any {
		props := maps.Clone(peer)
		maps.Copy(props, more)
		return list(object(props, optional...))
	}
	props := map[string]any{
		"nodes":  described(row(map[string]any{"output": node, "error": anyObject()}, "output", "error"), "The nodes that answered, each with its output or error."),
		"silent": described(row(map[string]any{"error": anyObject()}), "The nodes that did not answer, each with why not."),
		"absent": described(row(nil), "The live nodes that do not host the module."),
	}
	merged, _ := node["properties"].(map[string]any)
	switch {
	case g == Control:
		props["success"] = described(boolean(), "Whether every node that has what is to be changed did it.")
	case id == idManifestFull:
		full := maps.Clone(merged)
		delete(full, "modules")
		props["nodes"] = row(map[string]any{"output": object(full), "error": anyObject()}, "output", "error")
		maps.Copy(props, full)
		entry := manifestSchema("input_schema", "output_schema", "source_path")
		named := maps.Clone(entry["properties"].(map[string]any))
		named["nodes"] = list(text())
		props["modules"] = list(object(named, "input_schema", "output_schema", "source_path"))
	case id == idHealthSummary, id == idUsageSummary:
		maps.Copy(props, merged)
	}
	return object(props)
}

// fleetInputs are the inputs for the nodes. Health counts modules by their worst
// state, so a node must not leave its healthy ones out.
func fleetInputs(r *contextwire.Request) map[string]any {
	if include, ok := r.Inputs["include_healthy"].(bool); r.ModuleID != idHealthSummary || !ok || include {
		return r.Inputs
	}
	in := maps.Clone(r.Inputs)
	in["include_healthy"] = true
	return in
}

// merged is what the fleet says as one, beside the rows.
func (g *gathering) merged() map[string]any {
	switch {
	case groupOf(g.req.ModuleID) == Control:
		return map[string]any{"success": !slices.ContainsFunc(g.rows, func(o *outcome) bool {
			return o.err != nil && (o.silent || o.err.Code != module.CodeModuleNotFound) || o.err == nil && o.output["success"] == false
		})}
	case g.req.ModuleID == idHealthSummary:
		return g.health()
	case g.req.ModuleID == idUsageSummary:
		return g.usage()
	case g.req.ModuleID == idManifestFull:
		return g.manifest()
	}
	return map[string]any{}
}

// outputs are what the nodes said, sorted by node.
func (g *gathering) outputs() []*outcome {
	return slices.DeleteFunc(slices.Clone(g.rows), func(o *outcome) bool { return o.err != nil })
}

// health takes of each module its worst state and rate, and the failure that one node
// saw most often.
func (g *gathering) health() map[string]any {
	rank := []any{statusUnknown, statusHealthy, statusDegraded, statusError}
	worst := map[string]map[string]any{}
	var project any
	for _, o := range g.outputs() {
		if project == nil {
			project = o.output["project"]
		}
		for _, m := range records(o.output["modules"]) {
			id, _ := m["module_id"].(string)
			seen := worst[id]
			if seen == nil {
				worst[id] = maps.Clone(m)
				continue
			}
			if slices.Index(rank, m["status"]) > slices.Index(rank, seen["status"]) {
				seen["status"] = m["status"]
			}
			seen["error_rate"] = max(float(seen["error_rate"]), float(m["error_rate"]))
			if top, _ := m["top_error"].(map[string]any); top != nil {
				if was, _ := seen["top_error"].(map[string]any); was == nil || whole(top["count"]) > whole(was["count"]) {
					seen["top_error"] = top
				}
			}
		}
	}
	wanted, given := g.req.Inputs["include_healthy"].(bool)
	counts := map[any]int64{}
	modules := []any{}
	for _, id := range slices.Sorted(maps.Keys(worst)) {
		status := worst[id]["status"]
		if counts[status]++; status != statusHealthy || wanted || !given {
			modules = append(modules, worst[id])
		}
	}
	summary := map[string]any{"total_modules": int64(len(worst))}
	for _, status := range rank {
		summary[status.(string)] = counts[status]
	}
	return map[string]any{"project": project, "summary": summary, "modules": modules}
}

// usage adds the calls of each module up. Callers are known by number only, so that
// of the node that saw most of them is given: there are at least so many. The trend
// is that of the node that had most of the calls.
func (g *gathering) usage() map[string]any {
	type tally struct {
		calls, errors, callers, most int64
		spent                        float64
		trend                        any
	}
	tallies := map[string]*tally{}
	out := map[string]any{"period": nil, "total_calls": int64(0), "total_errors": int64(0)}
	for _, o := range g.outputs() {
		out["period"] = o.output["period"]
		out["total_calls"] = whole(out["total_calls"]) + whole(o.output["total_calls"])
		out["total_errors"] = whole(out["total_errors"]) + whole(o.output["total_errors"])
		for _, m := range records(o.output["modules"]) {
			id, _ := m["module_id"].(string)
			t := tallies[id]
			if t == nil {
				t = &tally{trend: string(middleware.TrendStable), most: -1}
				tallies[id] = t
			}
			calls := whole(m["call_count"])
			t.calls, t.errors = t.calls+calls, t.errors+whole(m["error_count"])
			t.callers = max(t.callers, whole(m["unique_callers"]))
			t.spent += float(m["avg_latency_ms"]) * float64(calls)
			if calls > t.most {
				t.most, t.trend = calls, m["trend"]
			}
		}
	}
	ids := slices.SortedFunc(maps.Keys(tallies), func(a, b string) int {
		return cmp.Or(cmp.Compare(tallies[b].calls, tallies[a].calls), cmp.Compare(a, b))
	})
	rows := make([]any, len(ids))
	for i, id := range ids {
		t := tallies[id]
		rows[i] = map[string]any{
			"module_id": id, "call_count": t.calls, "error_count": t.errors,
			"avg_latency_ms": t.spent / max(float64(t.calls), 1), "unique_callers": t.callers, "trend": t.trend,
		}
	}
	out["modules"] = rows
	return out
}

// manifest lists each module once with the nodes that say so; one of which nodes say
// different things has a row for each.
func (g *gathering) manifest() map[string]any {
	type row struct {
		entry map[string]any
		nodes []any
	}
	rows := map[string][]*row{}
	said := map[*row]string{}
	var project any
	total := int64(0)
	for _, o := range g.outputs() {
		if project == nil {
			project = o.output["project_name"]
		}
		for _, m := range records(o.output["modules"]) {
			id, _ := m["module_id"].(string)
			content := maps.Clone(m)
			delete(content, "source_path") // where a file is differs between machines
			hash := schema.ContentHash(content)
			i := slices.IndexFunc(rows[id], func(r *row) bool { return said[r] == hash })
			if i < 0 {
				i = len(rows[id])
				r := &row{entry: maps.Clone(m)}
				rows[id], said[r], total = append(rows[id], r), hash, total+1
			}
			rows[id][i].nodes = append(rows[id][i].nodes, o.Node)
		}
	}
	modules := []any{}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		for _, r := range rows[id] {
			r.entry["nodes"] = r.nodes
			modules = append(modules, r.entry)
		}
	}
	return map[string]any{"project_name": project, "module_count": total, "modules": modules}
}

// shownOutput is a node's output in its row. The modules of a manifest are named
// once, with their nodes.
func (o *outcome) shownOutput(id string) map[string]any {
	if id != idManifestFull {
		return o.output
	}
	out := maps.Clone(o.output)
	delete(out, "modules")
	return out
}

// records reads a list of objects.
func records(v any) []map[string]any {
	items, _ := v.([]any)
	out := make([]map[string]any, 0, len(items))
	for _, item := range items {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// whole and float read a number as it comes over the wire.
func whole(v any) int64 { return int64(float(v)) }

func float(v any) float64 {
	switch n := v.(type) {
	case int64:
		return float64(n)
	case uint64:
		return float64(n)
	case float64:
		return n
	}
	return 0
}
