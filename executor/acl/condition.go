package acl

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
)

// ConditionFunc decides a condition of an application. value is what the rule
// gives for its key and must not be modified; q.Context is never nil. An error or
// a panic makes the condition unevaluable. It should return when ctx is done.
type ConditionFunc func(ctx context.Context, value any, q Query) (bool, error)

// Names of the built-in conditions and argument predicates.
const (
	keyIdentityTypes = "identity_types"
	keyRoles         = "roles"
	keyMaxCallDepth  = "max_call_depth"
	keyArguments     = "arguments"

	predHasKey  = "has_key"
	predHasAll  = "has_all_keys"
	predHasNone = "has_none_of"
)

func builtinCondition(key string) bool {
	switch key {
	case tokenOr, tokenNot, keyIdentityTypes, keyRoles, keyMaxCallDepth, keyArguments:
		return true
	}
	return false
}

// fault is a condition that cannot be evaluated. path follows the grammar of
// protocol §6.1.1: key, $or[i].key, $not.key, arguments.predicate, $, callers.
type fault struct {
	path, reason string
	// key is the condition key for findings, "" for a structural fault.
	key string
	// unregistered marks a key without a handler, which may still be registered.
	unregistered bool
}

type nodeKind uint8

const (
	nodeAll nodeKind = iota // every child
	nodeOr
	nodeNot
	nodeIdentityTypes
	nodeRoles
	nodeMaxCallDepth
	nodeHasKey
	nodeHasAll
	nodeHasNone
	nodeCustom
)

// condition is a compiled condition tree.
type condition struct {
	kind     nodeKind
	path     string
	children []condition
	names    []string
	limit    int64
	handler  ConditionFunc
	value    any
}

// conditionCompiler walks a whole tree without calling a handler and without
// stopping at the first fault (protocol §6.1.4).
type conditionCompiler struct {
	handlers map[string]ConditionFunc
	faults   []fault
	// needsArguments and custom say what evaluating will use.
	needsArguments, custom bool
}

// compile returns nil when there are no conditions.
func (c *conditionCompiler) compile(v any) *condition {
	if v == nil {
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		c.fault("$", "", "conditions is not an object")
		return nil
	}
	if len(m) == 0 {
		return nil
	}
	n := c.object(m, "")
	return &n
}

func (c *conditionCompiler) fault(path, key, reason string) {
	c.faults = append(c.faults, fault{path: path, key: key, reason: reason})
}

// object compiles an AND over keys, in lexical order so that results and
// diagnostics do not depend on map order.
func (c *conditionCompiler) object(m map[string]any, prefix string) condition {
	n := condition{kind: nodeAll}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		path := prefix + key
		switch key {
		case tokenOr:
			n.children = append(n.children, c.or(m[key], path))
		case tokenNot:
			n.children = append(n.children, c.not(m[key], path))
		case keyIdentityTypes:
			n.children = append(n.children, c.list(nodeIdentityTypes, m[key], path, key))
		case keyRoles:
			n.children = append(n.children, c.list(nodeRoles, m[key], path, key))
		case keyMaxCallDepth:
			limit, ok := integer(m[key])
			if !ok {
				c.fault(path, key, "value is not an integer")
			}
			n.children = append(n.children, condition{kind: nodeMaxCallDepth, path: path, limit: limit})
		case keyArguments:
			n.children = append(n.children, c.arguments(m[key], path))
		default:
			n.children = append(n.children, c.customNode(key, m[key], path))
		}
	}
	if len(n.children) == 1 {
		return n.children[0]
	}
	return n
}

func (c *conditionCompiler) or(v any, path string) condition {
	n := condition{kind: nodeOr, path: path}
	list, ok := v.([]any)
	if !ok {
		c.fault(path, tokenOr, "value is not a list")
		return n
	}
	for i, e := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		m, ok := e.(map[string]any)
		if !ok {
			c.fault(at, "", "element is not an object")
			continue
		}
		if len(m) == 0 {
			c.fault(at, "", "element is empty")
			continue
		}
		n.children = append(n.children, c.object(m, at+"."))
	}
	return n
}

func (c *conditionCompiler) not(v any, path string) condition {
	n := condition{kind: nodeNot, path: path}
	m, ok := v.(map[string]any)
	switch {
	case !ok:
		c.fault(path, tokenNot, "value is not an object")
	case len(m) == 0:
		c.fault(path, tokenNot, "value is empty")
	default:
		n.children = []condition{c.object(m, path+".")}
	}
	return n
}

func (c *conditionCompiler) list(kind nodeKind, v any, path, key string) condition {
	names, ok := stringList(v)
	if !ok {
		c.fault(path, key, "value is not a list of strings")
	}
	return condition{kind: kind, path: path, names: names}
}

func (c *conditionCompiler) arguments(v any, path string) condition {
	c.needsArguments = true
	n := condition{kind: nodeAll}
	m, ok := v.(map[string]any)
	switch {
	case !ok:
		c.fault(path, keyArguments, "value is not an object")
		return n
	case len(m) == 0:
		c.fault(path, keyArguments, "value is empty")
		return n
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		at := path + "." + name
		var kind nodeKind
		switch name {
		case predHasKey:
			kind = nodeHasKey
		case predHasAll:
			kind = nodeHasAll
		case predHasNone:
			kind = nodeHasNone
		default:
			c.fault(at, keyArguments, "no such predicate")
			continue
		}
		p := c.list(kind, m[name], at, keyArguments)
		p.path = path // a missing projection is a fault of arguments as a whole
		n.children = append(n.children, p)
	}
	return n
}

func (c *conditionCompiler) customNode(key string, v any, path string) condition {
	h := c.handlers[key]
	if h == nil {
		c.faults = append(c.faults, fault{path: path, key: key, reason: "no handler is registered", unregistered: true})
	}
	c.custom = true
	return condition{kind: nodeCustom, path: path, handler: h, value: v}
}

func stringList(v any) ([]string, bool) {
	list, ok := v.([]any)
	if !ok {
		return nil, false
	}
	out := make([]string, len(list))
	for i, e := range list {
		if out[i], ok = e.(string); !ok {
			return nil, false
		}
	}
	return out, true
}

func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case uint64:
		return int64(min(n, math.MaxInt64)), true //nolint:gosec // bounded above
	case float64:
		if n == math.Trunc(n) && math.Abs(n) < 1<<53 {
			return int64(n), true
		}
	}
	return 0, false
}
