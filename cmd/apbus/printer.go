package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/apbus/apbus/contextwire"
)

// printer writes answers: one JSON document with --json, tables and colour on a
// terminal, plain lines with tabs elsewhere.
type printer struct {
	w        io.Writer
	json     bool
	terminal bool
}

// document writes v as JSON with sorted keys and exact integers, indented on a
// terminal unless --json asked for the stable form.
func (p *printer) document(v any) error {
	raw, err := contextwire.EncodeCanonical(contextwire.JSON, v)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	if p.terminal && !p.json {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, raw, "", "  "); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		raw = pretty.Bytes()
	}
	_, err = p.w.Write(append(raw, '\n'))
	return err
}

// table writes rows. The header appears on a terminal only, so that scripts see
// data and nothing else.
func (p *printer) table(header []string, rows [][]string) error {
	if !p.terminal {
		for _, r := range rows {
			if _, err := fmt.Fprintln(p.w, strings.Join(clean(r), "\t")); err != nil {
				return err
			}
		}
		return nil
	}
	// Colour goes on whole lines after the columns are laid out, since the
	// layout would count the codes as width.
	var laid bytes.Buffer
	tw := tabwriter.NewWriter(&laid, 0, 0, 2, ' ', 0)
	for _, r := range append([][]string{header}, rows...) {
		fmt.Fprintln(tw, strings.Join(clean(r), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	head, body, _ := strings.Cut(laid.String(), "\n")
	_, err := io.WriteString(p.w, p.bold(strings.TrimRight(head, " "))+"\n"+body)
	return err
}

// facts writes what is known, a label and a value a line.
func (p *printer) facts(list [][2]string) error {
	for _, l := range list {
		label, value := printable(l[0]), printable(l[1])
		switch {
		case value == "":
			continue
		case label != "":
			value = p.bold(label) + "  " + value
		}
		if err := p.line("%s", value); err != nil {
			return err
		}
	}
	return nil
}

// clean keeps a cell on its line and free of control codes: descriptions and
// IDs come from other processes.
func clean(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = printable(c)
	}
	return out
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == '\r' {
			return ' '
		}
		if r < 0x20 || (r >= 0x7f && r < 0xa0) {
			return -1
		}
		// What reorders text would show another one than is there.
		if unicode.Is(unicode.Bidi_Control, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

func (p *printer) line(format string, args ...any) error {
	_, err := fmt.Fprintf(p.w, format+"\n", args...)
	return err
}

func (p *printer) bold(s string) string  { return p.colour("1", s) }
func (p *printer) green(s string) string { return p.colour("32", s) }
func (p *printer) red(s string) string   { return p.colour("31", s) }

func (p *printer) colour(code, s string) string {
	if !p.terminal {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
