package main

import (
	"bytes"
	"testing"

	"github.com/apbus/apbus/module"
)

// TestTerminal shows the forms that only a terminal gets.
func TestTerminal(t *testing.T) {
	valid, err := module.PreflightFromMap(schemaOf(t, validCheck))
	if err != nil {
		t.Fatal(err)
	}
	invalid, err := module.PreflightFromMap(schemaOf(t, invalidCheck))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		print func(p *printer) error
	}{
		{"terminal-output", func(p *printer) error { return p.document(map[string]any{"b": int64(1) << 60, "a": []any{1.0, "<"}}) }},
		{"terminal-check", func(p *printer) error { return showCheck(p, "orders.place", valid) }},
		{"terminal-check-refused", func(p *printer) error { return showCheck(p, "orders.place", invalid) }},
		{"terminal-module", func(p *printer) error { return showModule(p, schemaOf(t, addDoc)) }},
		{"terminal-cancelled", func(p *printer) error {
			return showCancelled(p, &cancelled{nodes: []string{"n1", "n2"}, calls: []string{"call-1", "call-2"}, state: "cancelling"})
		}},
		{"terminal-table", func(p *printer) error {
			return p.table([]string{"A", "LONG HEADER"}, [][]string{{"with\x1b[31m codes", "two\nlines\tand tab"}, {"x", ""}})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			if err := tt.print(&printer{w: &out, terminal: true}); err != nil {
				t.Fatal(err)
			}
			golden(t, tt.name, out.String())
		})
	}
}
