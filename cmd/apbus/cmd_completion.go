package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// completionCmd prints what a shell evaluates.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help says how to use the script.
func (*completionCmd) Help() string {
	return `For this shell:
  source <(apbus completion bash)
  source <(apbus completion zsh)
  apbus completion fish | source`
}

// The scripts ask apbus itself what fits, so that they also know the modules
// that are live at the moment.
const (
	bashScript = `_apbus() {
  local IFS=$'\n'
  COMPREPLY=($(apbus complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -F _apbus apbus`
	zshScript = `_apbus() {
  local -a found
  found=("${(@f)$(apbus complete -- "${words[@]:1:$((CURRENT-1))}" 2>/dev/null)}")
  compadd -S '' -a found
}
compdef _apbus apbus`
	fishScript = `complete -c apbus -f -a '(apbus complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'`
)

// Run prints the script.
func (c *completionCmd) Run(s *session) error {
	script := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	if s.stdout.json {
		return s.stdout.document(map[string]any{"shell": c.Shell, "script": script})
	}
	return s.stdout.line("%s", script)
}

// completeCmd prints what fits the last of the words, one a line.
type completeCmd struct {
	Words []string `arg:"" optional:""`
}

// completionLimit keeps the shell responsive when nothing answers.
const completionLimit = 800 * time.Millisecond

// Run prints the completions. What cannot be found out is left out silently,
// since the user is in the middle of a line.
func (c *completeCmd) Run(s *session) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	for _, found := range s.completions(words[:len(words)-1], words[len(words)-1]) {
		if err := s.stdout.line("%s", printable(found)); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) completions(before []string, last string) []string {
	node, arguments := s.model.Node, []string(nil)
	for _, word := range before {
		if strings.HasPrefix(word, "-") {
			continue
		}
		if child := childOf(node, word); child != nil && len(arguments) == 0 {
			node = child
			continue
		}
		arguments = append(arguments, word)
	}
	var all []string
	switch {
	case strings.HasPrefix(last, "-"):
		for _, group := range node.AllFlags(true) {
			for _, f := range group {
				all = append(all, "--"+f.Name)
			}
		}
	case node.Leaf() || len(node.Positional) > 0:
		all = s.argumentsOf(node, arguments)
	default:
		for _, child := range node.Children {
			if !child.Hidden {
				all = append(all, child.Name)
			}
		}
	}
	all = slices.DeleteFunc(all, func(w string) bool { return !strings.HasPrefix(w, last) })
	slices.Sort(all)
	return slices.Compact(all)
}

func childOf(node *kong.Node, name string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == name {
			return child
		}
	}
	return nil
}

// argumentsOf lists what may stand as the next argument of a command.
func (s *session) argumentsOf(node *kong.Node, given []string) (all []string) {
	ctx, stop := context.WithTimeoutCause(s.ctx, completionLimit, errors.New("too slow for a completion"))
	defer stop()
	live := func(list func(backend) ([]map[string]any, error), key string) {
		_ = s.with(func(b backend) error { // without an answer there is nothing to offer
			items, err := list(b)
			for _, item := range items {
				all = append(all, text(item[key]))
			}
			return err
		})
	}
	name := strings.TrimPrefix(node.FullPath(), s.model.Name+" ")
	switch {
	case name == "completion":
		return []string{"bash", "fish", "zsh"}
	case name == "nodes drain" && len(given) == 0:
		live(func(b backend) ([]map[string]any, error) { return b.Nodes(ctx) }, "node")
	case (name == "call" || name == "check" || name == "modules" || name == "tasks submit" || name == "tasks pause" || name == "tasks resume") && len(given) == 0:
		live(func(b backend) ([]map[string]any, error) { return b.Modules(ctx) }, "module_id")
	case name == "call" || name == "check" || name == "tasks submit":
		_ = s.with(func(b backend) error { // as above
			m, err := b.Module(ctx, given[0])
			schema, _ := m["input_schema"].(map[string]any)
			properties, _ := schema["properties"].(map[string]any)
			for _, key := range slices.Sorted(maps.Keys(properties)) {
				all = append(all, key+"=")
			}
			return err
		})
	}
	return all
}
