package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// showRec shows a recommendation for a person who is to decide: nothing of what it
// would change is left out.
func showRec(p *printer, r map[string]any) error {
	body, _ := r["recommendation"].(map[string]any)
	verdict := text(r["verdict"])
	facts := [][2]string{
		{"", text(r["summary"])},
		{"recommendation", text(r["hash"])},
		{"state", strings.TrimSpace(text(r["state"]) + " " + text(r["intent"]))},
		{"severity", text(r["severity"])},
		{"kind", proposalOf(r)},
		{"target", text(r["target"])},
		{"by", strings.TrimSpace(text(r["analyzer"]) + " " + text(r["model"]))},
		{"drafted for", text(body["co_creator"])},
		{"confidence", inline(r["confidence"])},
		{"created", text(r["created_at"])},
		{"guidance", text(r["guidance"])},
		{"measured since", verdict},
		{"evalset", text(body["evalset_hash"])},
	}
	if err := p.facts(facts); err != nil {
		return err
	}
	if err := p.line("\n%s", p.bold("what it would change")); err != nil {
		return err
	}
	change, _ := body["proposal"].(map[string]any)
	if err := showChange(p, r, change); err != nil {
		return err
	}
	if near, _ := body["near_duplicate_of"].([]any); len(near) > 0 {
		if err := p.line("\n%s", p.bold("nearly the same as")); err != nil {
			return err
		}
		for _, item := range near {
			n, _ := item.(map[string]any)
			if err := p.line("%s  %s %s", printable(text(n["hash"])), printable(inline(n["score"])), printable(text(n["state"]))); err != nil {
				return err
			}
		}
	}
	if replay, ok := body["replay"].(map[string]any); ok {
		if err := showReplay(p, replay); err != nil {
			return err
		}
	}
	if err := p.line("\n%s", p.bold("evidence")); err != nil {
		return err
	}
	evidence, _ := r["evidence"].([]any)
	if err := p.table(evidenceHeader, evidenceRows(evidence)); err != nil {
		return err
	}
	if gone := number(r["evidence_gone"]); gone > 0 {
		if err := p.line("%d more records are no longer kept", int(gone)); err != nil {
			return err
		}
	}
	return showHistory(p, r)
}

func showHistory(p *printer, r map[string]any) error {
	if err := p.line("\n%s", p.bold("history")); err != nil {
		return err
	}
	var rows [][]string
	history, _ := r["history"].([]any)
	for _, item := range history {
		a, _ := item.(map[string]any)
		rows = append(rows, []string{text(a["at"]), text(a["event"]), text(a["actor"]), text(a["observer_type"]), text(a["because"])})
	}
	return p.table([]string{"TIME", "EVENT", "BY", "AS", "BECAUSE"}, rows)
}

// showChange shows the operations of a proposal, each with all of its fields.
func showChange(p *printer, r, change map[string]any) error {
	switch text(change["kind"]) {
	case "revert":
		return p.line("it takes %s back", printable(text(change["revert_of"])))
	case "ops":
	default:
		if err := p.line("nothing; it is advice"); err != nil {
			return err
		}
		data, _ := change["data"].(map[string]any)
		return showFields(p, data)
	}
	if r["destructive"] == true {
		if err := p.line("%s", p.red("it cannot be undone")); err != nil {
			return err
		}
	}
	ops, _ := change["ops"].([]any)
	for _, item := range ops {
		o, _ := item.(map[string]any)
		where := text(o["name"])
		if ns := text(o["namespace"]); ns != "" {
			where = ns + "/" + where
		}
		if err := p.line("%s %s %s", printable(text(o["op"])), printable(text(o["type"])), printable(where)); err != nil {
			return err
		}
		if old := text(o["replaces"]); old != "" {
			if err := p.line("  in the place of %s", printable(old)); err != nil {
				return err
			}
		}
		fields, _ := o["fields"].(map[string]any)
		if err := showFields(p, fields); err != nil {
			return err
		}
	}
	return nil
}

// showFields shows values a line each, texts of several lines and lists as they are.
func showFields(p *printer, fields map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		switch v := fields[key].(type) {
		case []any:
			if err := p.line("  %s:", printable(key)); err != nil {
				return err
			}
			for i, item := range v {
				if err := p.line("    %d. %s", i+1, printable(inline(item))); err != nil {
					return err
				}
			}
		case string:
			lines := strings.Split(v, "\n")
			if len(lines) == 1 {
				if err := p.line("  %s: %s", printable(key), printable(v)); err != nil {
					return err
				}
				continue
			}
			if err := p.line("  %s:", printable(key)); err != nil {
				return err
			}
			for _, l := range lines {
				// A tab is kept as white space; control codes are not shown.
				if err := p.line("    | %s", printable(strings.ReplaceAll(l, "\t", "    "))); err != nil {
					return err
				}
			}
		default:
			if err := p.line("  %s: %s", printable(key), printable(inline(v))); err != nil {
				return err
			}
		}
	}
	return nil
}

// showGuidance shows what was learned about a module.
func showGuidance(p *printer, m map[string]any) error {
	list, _ := m["guidance"].([]any)
	if len(list) == 0 {
		return nil
	}
	if err := p.line("\n%s", p.bold("guidance")); err != nil {
		return err
	}
	rows := make([][]string, 0, len(list))
	for _, item := range list {
		g, _ := item.(map[string]any)
		rec := text(g["rec"])
		rows = append(rows, []string{text(g["kind"]), text(g["text"]), fmt.Sprint(rec[:min(len(rec), shortHash)]), text(g["applied_at"])})
	}
	return p.table([]string{"KIND", "WHAT", "RECOMMENDATION", "SINCE"}, rows)
}
