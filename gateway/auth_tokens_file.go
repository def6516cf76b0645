package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/apbus/apbus/module"
)

// parseTokens reads the tokens file of the wire protocol, section 9. Unknown
// keys are refused; every error names the line.
func parseTokens(content []byte) ([]tokenEntry, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, errors.New("the file is empty; want the key tokens")
	}
	root, err := fields(doc.Content[0], "tokens")
	if err != nil {
		return nil, err
	}
	list := root["tokens"]
	if list == nil || list.Kind != yaml.SequenceNode {
		return nil, atLine(doc.Content[0], "tokens must be a list")
	}
	entries := make([]tokenEntry, 0, len(list.Content))
	seen := map[[sha256.Size]byte]int{}
	for _, item := range list.Content {
		e, err := parseToken(item)
		if err != nil {
			return nil, err
		}
		if line, twice := seen[e.sum]; twice {
			return nil, atLine(item, "the token is the same as that of line %d", line)
		}
		seen[e.sum] = item.Line
		entries = append(entries, e)
	}
	return entries, nil
}

func parseToken(n *yaml.Node) (tokenEntry, error) {
	var e tokenEntry
	f, err := fields(n, "sha256", "identity", "scopes")
	if err != nil {
		return e, err
	}
	sum := f["sha256"]
	if sum == nil {
		return e, atLine(n, "the entry has no sha256")
	}
	raw, err := hex.DecodeString(sum.Value)
	if err != nil || copy(e.sum[:], raw) != len(e.sum) || len(raw) != len(e.sum) {
		return e, atLine(sum, "sha256 must be 64 hex digits")
	}
	e.principal = &Principal{}
	if f["identity"] == nil {
		return e, atLine(n, "the entry has no identity")
	}
	if e.principal.Identity, err = parseIdentity(f["identity"]); err != nil {
		return e, err
	}
	scopes := f["scopes"]
	if scopes == nil || scopes.Kind != yaml.SequenceNode {
		return e, atLine(n, "scopes must be a list")
	}
	for _, item := range scopes.Content {
		scope := Scope(item.Value)
		if !slices.Contains(Scopes(), scope) {
			return e, atLine(item, "unknown scope; want some of %v", Scopes())
		}
		if !e.principal.May(scope) {
			e.principal.Scopes = append(e.principal.Scopes, scope)
		}
	}
	return e, nil
}

func parseIdentity(n *yaml.Node) (*module.Identity, error) {
	if _, err := fields(n, "id", "type", "roles", "attrs"); err != nil {
		return nil, err
	}
	var m map[string]any
	if err := n.Decode(&m); err != nil {
		return nil, atLine(n, "identity: %w", err)
	}
	m, err := module.NormalizeMap(m)
	if err != nil {
		return nil, atLine(n, "identity: %w", err)
	}
	id, err := module.IdentityFromMap(m)
	if err != nil {
		return nil, atLine(n, "%w", err)
	}
	if id.ID() == "" {
		return nil, atLine(n, "identity has an empty id")
	}
	return id, nil
}

// fields reads a mapping whose keys are all among known.
func fields(n *yaml.Node, known ...string) (map[string]*yaml.Node, error) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return nil, atLine(n, "want a mapping of %s", strings.Join(known, ", "))
	}
	out := make(map[string]*yaml.Node, len(known))
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !slices.Contains(known, key.Value) {
			return nil, atLine(key, "unknown key %q; want %s", key.Value, strings.Join(known, ", "))
		}
		if out[key.Value] != nil {
			return nil, atLine(key, "key %q is given twice", key.Value)
		}
		out[key.Value] = resolve(n.Content[i+1])
	}
	return out, nil
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func atLine(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %w", n.Line, fmt.Errorf(format, args...))
}
