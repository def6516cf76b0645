package settings

import (
	"encoding"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// masked stands for a secret.
const masked = "********"

// userInfo finds the credentials inside a URL.
var userInfo = regexp.MustCompile(`://[^/@\s,]+@`)

// describeFlag adds to a flag's help what the flag syntax does not show: the
// default of a boolean and the environment variable.
func describeFlag(v *kong.Value) string {
	if v.Flag == nil {
		return v.Help
	}
	anywhere, _ := configurable(v.Flag)
	var notes []string
	switch {
	case v.IsBool() && anywhere:
		notes = append(notes, "default "+orText(v.Default, "false"))
	case v.HasDefault && v.Default != "":
		notes = append(notes, "default "+v.Default)
	case anywhere && !v.Required:
		notes = append(notes, "default none")
	}
	if anywhere {
		notes = append(notes, "$"+envName(v.Name))
	}
	if len(notes) == 0 {
		return v.Help
	}
	return strings.TrimSpace(v.Help + " (" + strings.Join(notes, "; ") + ")")
}

func orText(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// printSettings writes what a --config file with the same effect would hold,
// and beside each value where it came from.
func printSettings(w io.Writer, ctx *kong.Context, origin map[*kong.Flag]string) error {
	given := map[*kong.Flag]bool{}
	for _, p := range ctx.Path {
		if p.Flag != nil && !p.Resolved {
			given[p.Flag] = true
		}
	}
	doc := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range ctx.Flags() {
		if _, ok := configurable(f); !ok {
			continue
		}
		value, err := printable(f)
		if err != nil {
			return fmt.Errorf("print setting %s: %w", f.Name, err)
		}
		from := "default"
		switch where, resolved := origin[f]; {
		case given[f]:
			from = "flag"
		case resolved:
			from = where
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: f.Name, HeadComment: "from " + from}
		doc.Content = append(doc.Content, key, value)
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return fmt.Errorf("print the settings: %w", err)
	}
	return enc.Close()
}

func printable(f *kong.Flag) (*yaml.Node, error) {
	v := f.Target
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
		}
		v = v.Elem()
	}
	if f.Tag.Has("secret") && !v.IsZero() {
		return encode(masked)
	}
	switch x := v.Interface().(type) {
	case time.Duration:
		return encode(x.String())
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil {
			return nil, err
		}
		return encode(string(text))
	case string:
		return encode(maskURL(x))
	case []string:
		safe := make([]string, len(x))
		for i, s := range x {
			safe[i] = maskURL(s)
		}
		return encode(safe)
	default:
		return encode(x)
	}
}

func maskURL(s string) string { return userInfo.ReplaceAllString(s, "://"+masked+"@") }

func encode(v any) (*yaml.Node, error) {
	n := &yaml.Node{}
	return n, n.Encode(v)
}
