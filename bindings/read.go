package bindings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/apbus/apbus/module"
)

// place is one value of a file and where it stands.
type place struct {
	file string
	key  string // path from the root, such as bindings[0].command.argv
	line int
	node *yaml.Node
}

// fault is what is wrong with a file, with the line and the key.
func (p place) fault(format string, args ...any) error {
	at := p.file
	if p.line > 0 {
		at = fmt.Sprintf("%s:%d", p.file, p.line)
	}
	text := fmt.Errorf(format, args...)
	if p.key != "" {
		text = fmt.Errorf("%s: %w", p.key, text)
	}
	return module.Errorf(module.CodeBindingFileInvalid, "%s: %w", at, text).
		WithDetails(map[string]any{"file": p.file, "line": int64(p.line), "key": p.key})
}

// parse reads one document.
func parse(file string, raw []byte) (place, error) {
	root := place{file: file}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return root, root.fault("the file is empty")
	} else if err != nil {
		return root, root.fault("%w", err)
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return root, root.fault("more than one document")
	}
	root.node, root.line = doc.Content[0], doc.Content[0].Line
	if err := root.unique(); err != nil {
		return root, err
	}
	// Aliases may make a small file large; decoding it whole is what refuses that.
	var whole any
	if err := doc.Decode(&whole); err != nil {
		return place{file: file}, place{file: file}.fault("%w", err)
	}
	return root, nil
}

// unique refuses a key that is there twice, at any depth.
func (p place) unique() error {
	switch p.node.Kind {
	case yaml.MappingNode:
		in, err := p.mapping(nil)
		if err != nil {
			return err
		}
		for _, at := range in {
			if err := at.unique(); err != nil {
				return err
			}
		}
	case yaml.SequenceNode:
		items, err := p.items()
		if err != nil {
			return err
		}
		for _, item := range items {
			if err := item.unique(); err != nil {
				return err
			}
		}
	}
	return nil
}

// resolve follows an alias.
func (p place) resolve() *yaml.Node {
	n := p.node
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// fields are the values of a mapping by key.
type fields map[string]place

// mapping reads a mapping whose keys are all known; nil known admits any.
func (p place) mapping(known []string) (fields, error) {
	n := p.resolve()
	if n.Kind != yaml.MappingNode {
		return nil, p.fault("want a mapping of keys and values")
	}
	out := fields{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := n.Content[i], p
		at.line, at.node = key.Line, n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return nil, at.fault("a key is no text")
		}
		at.key = strings.TrimPrefix(p.key+"."+key.Value, ".")
		if _, twice := out[key.Value]; twice {
			return nil, at.fault("the key is there twice")
		}
		if known != nil && !slices.Contains(known, key.Value) {
			return nil, at.fault("unknown key; the nearest known key is %q", nearest(key.Value, known))
		}
		out[key.Value] = at
	}
	return out, nil
}

// items reads a list.
func (p place) items() ([]place, error) {
	n := p.resolve()
	if n.Kind != yaml.SequenceNode {
		return nil, p.fault("want a list")
	}
	out := make([]place, len(n.Content))
	for i, item := range n.Content {
		out[i] = place{file: p.file, key: fmt.Sprintf("%s[%d]", p.key, i), line: item.Line, node: item}
	}
	return out, nil
}

func (p place) isNull() bool { n := p.resolve(); return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// text reads a string; other scalars are not taken for one.
func (p place) text() (string, error) {
	n := p.resolve()
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		return "", p.fault("want a text")
	}
	return n.Value, nil
}

// value reads anything as part of the JSON data model.
func (p place) value() (any, error) {
	var v any
	err := p.node.Decode(&v)
	if err == nil {
		v, err = module.Normalize(v)
	}
	if err != nil {
		return nil, p.fault("want what JSON can express: %w", err)
	}
	return v, nil
}

func (p place) object() (map[string]any, error) {
	v, err := p.value()
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, p.fault("want a mapping of keys and values")
	}
	return m, nil
}

// The methods of fields below read one key, and give the zero value or what they
// were given where it is absent or null. The first fault sticks in err.

type fieldReader struct {
	in  fields
	err error
}

func (r *fieldReader) at(key string) (place, bool) {
	p, ok := r.in[key]
	return p, ok && !p.isNull() && r.err == nil
}

func (r *fieldReader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *fieldReader) text(key string) string {
	p, ok := r.at(key)
	if !ok {
		return ""
	}
	s, err := p.text()
	r.keep(err)
	return s
}

func (r *fieldReader) texts(key string) []string {
	p, ok := r.at(key)
	if !ok {
		return nil
	}
	items, err := p.items()
	r.keep(err)
	out := make([]string, 0, len(items))
	for _, item := range items {
		s, err := item.text()
		r.keep(err)
		out = append(out, s)
	}
	return out
}

func (r *fieldReader) object(key string) map[string]any {
	p, ok := r.at(key)
	if !ok {
		return nil
	}
	m, err := p.object()
	r.keep(err)
	return m
}

// duration reads a text such as 5s.
func (r *fieldReader) duration(key string, otherwise time.Duration) time.Duration {
	p, ok := r.at(key)
	if !ok {
		return otherwise
	}
	text, err := p.text()
	if err != nil {
		r.keep(p.fault("want a duration such as 5s"))
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		r.keep(p.fault("want a duration such as 5s, not below 0"))
	}
	return d
}

// size reads a number of bytes above zero.
func (r *fieldReader) size(key string, otherwise int64) int64 {
	p, ok := r.at(key)
	if !ok {
		return otherwise
	}
	v, err := p.value()
	n, isInt := v.(int64)
	if err != nil || !isInt || n < 1 {
		r.keep(p.fault("want a number of bytes above 0"))
		return otherwise
	}
	return n
}

// nearest is the known key that differs least.
func nearest(key string, known []string) string {
	best, least := "", 1<<30
	for _, k := range known {
		if d := distance(key, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance counts the edits between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
