package settings

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// sources gives kong what the environment and the file say.
type sources struct {
	env  func(string) (string, bool)
	file map[string]setting
	// origin says where the value of a flag came from, for --print-config.
	origin map[*kong.Flag]string
}

// setting is one key of the file, its value in the form a flag would take.
type setting struct {
	value string
	where string // file:line
}

// envName is the variable of a flag: APBUS_ and the flag's name.
func envName(flag string) string {
	return "APBUS_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// configurable reports whether a flag may come from elsewhere than the command
// line, and fromFile whether the file may hold it.
func configurable(f *kong.Flag) (anywhere, fromFile bool) {
	switch f.Name {
	case "help", "version", "print-config":
		return false, false
	case "config":
		return true, false
	}
	local := f.Tag.Has("local")
	return !local, !local
}

// load runs after the command line was read: it reads the file that --config
// or APBUS_CONFIG names and gives the parse a resolver over both sources.
func (s *sources) load(ctx *kong.Context) error {
	known := map[string]*kong.Flag{}
	collectFlags(ctx.Model.Node, known)
	path, _ := ctx.FlagValue(known["config"]).(string)
	if path == "" {
		path, _ = s.env(envName("config"))
	}
	if path != "" {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the configuration: %w", err)
		}
		if s.file, err = readFile(path, content, known); err != nil {
			return err
		}
	}
	ctx.AddResolver(kong.ResolverFunc(s.resolve))
	return nil
}

func collectFlags(n *kong.Node, into map[string]*kong.Flag) {
	for _, f := range n.Flags {
		if _, taken := into[f.Name]; !taken {
			into[f.Name] = f
		}
	}
	for _, child := range n.Children {
		collectFlags(child, into)
	}
}

// resolve is asked for each flag that the command line left open.
func (s *sources) resolve(_ *kong.Context, _ *kong.Path, f *kong.Flag) (any, error) {
	anywhere, fromFile := configurable(f)
	if !anywhere {
		return nil, nil
	}
	name := envName(f.Name)
	if v, ok := s.env(name); ok && v != "" {
		return s.accept(f, v, name)
	}
	if set, ok := s.file[f.Name]; ok && fromFile {
		return s.accept(f, set.value, set.where)
	}
	return nil, nil
}

// accept tries the value on the flag's type here, where its origin is known.
func (s *sources) accept(f *kong.Flag, value, where string) (any, error) {
	scan := kong.ScanFromTokens(kong.Token{Type: kong.FlagValueToken, Value: value})
	target := reflect.New(f.Target.Type()).Elem()
	if target.Kind() == reflect.Pointer {
		target.Set(reflect.New(target.Type().Elem()))
	}
	if err := f.Mapper.Decode(&kong.DecodeContext{Value: f.Value, Scan: scan}, target); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	s.origin[f] = where
	return value, nil
}

// readFile reads one YAML mapping of flag names. A null counts as absent.
func readFile(path string, content []byte, known map[string]*kong.Flag) (map[string]setting, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want a mapping of settings", path, root.Line)
	}
	out := make(map[string]setting, len(root.Content)/2)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		where := fmt.Sprintf("%s:%d", path, key.Line)
		f := known[key.Value]
		if f != nil {
			if _, ok := configurable(f); !ok {
				f = nil
			}
		}
		if f == nil {
			return nil, fmt.Errorf("%s: %w", where, unknownKey(key.Value, known))
		}
		if _, twice := out[key.Value]; twice {
			return nil, fmt.Errorf("%s: key %q is given twice", where, key.Value)
		}
		text, set, err := flagText(f, value)
		if err != nil {
			return nil, fmt.Errorf("%s: key %q: %w", where, key.Value, err)
		}
		if set {
			out[key.Value] = setting{value: text, where: where}
		}
	}
	return out, nil
}

func unknownKey(key string, known map[string]*kong.Flag) error {
	names := make([]string, 0, len(known))
	for name, f := range known {
		if _, ok := configurable(f); ok {
			names = append(names, name)
		}
	}
	if near := Nearest(key, names); near != "" {
		return fmt.Errorf("unknown key %q; the nearest known key is %q", key, near)
	}
	return fmt.Errorf("unknown key %q", key)
}

// flagText turns a YAML value into the text that the flag takes on the command
// line; set is false for null.
func flagText(f *kong.Flag, n *yaml.Node) (text string, set bool, err error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", false, nil
		}
		if f.IsSlice() {
			return escapeItem(f, n.Value), true, nil
		}
		return n.Value, true, nil
	case yaml.SequenceNode:
		if !f.IsSlice() {
			return "", false, errors.New("want one value, not a list")
		}
		items := make([]string, len(n.Content))
		for i, item := range n.Content {
			if item.Kind != yaml.ScalarNode {
				return "", false, errors.New("want a list of plain values")
			}
			items[i] = escapeItem(f, item.Value)
		}
		return strings.Join(items, string(separator(f))), true, nil
	}
	return "", false, errors.New("want a plain value or a list of them")
}

func separator(f *kong.Flag) rune {
	if f.Tag.Sep == -1 { // the flag is not split on the command line; neither is the file's value
		return '\n'
	}
	return f.Tag.Sep
}

func escapeItem(f *kong.Flag, item string) string {
	return kong.JoinEscaped([]string{item}, separator(f))
}
