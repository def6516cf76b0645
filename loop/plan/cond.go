package plan

import (
	"errors"
	"strings"

	"github.com/apbus/apbus/contextwire"
)

// MaxCondLen is the longest condition in characters.
const MaxCondLen = 200

// Cond is a parsed condition. The zero Cond always holds.
//
//	cond    := path "==" literal | path "!=" literal | path " exists" | ["!"] path
//	path    := segment ("." segment)*      segment := [A-Za-z0-9_-]+
//	literal := JSON string | number | true | false | null
//
// The grammar is frozen (loop spec, section 8.1).
type Cond struct {
	op      condOp
	path    []string
	literal any
}

type condOp uint8

const (
	condAlways condOp = iota
	condEqual
	condUnequal
	condExists
	condTruthy
	condFalsy
)

var errCond = errors.New("condition is not in the grammar: path == literal, path != literal, path exists, path, !path")

// ParseCond reads a condition.
func ParseCond(s string) (Cond, error) {
	if len([]rune(s)) > MaxCondLen {
		return Cond{}, errors.New("condition is too long")
	}
	s = strings.TrimSpace(s)
	if at, op := comparison(s); at >= 0 {
		path, ok := parsePath(strings.TrimRight(s[:at], " \t"))
		if !ok {
			return Cond{}, errCond
		}
		literal, ok := parseLiteral(s[at+2:])
		if !ok {
			return Cond{}, errCond
		}
		return Cond{op: op, path: path, literal: literal}, nil
	}
	op := condTruthy
	if rest, ok := strings.CutSuffix(s, " exists"); ok {
		op, s = condExists, strings.TrimRight(rest, " \t")
	} else if rest, ok := strings.CutPrefix(s, "!"); ok {
		op, s = condFalsy, strings.TrimLeft(rest, " \t")
	}
	path, ok := parsePath(s)
	if !ok {
		return Cond{}, errCond
	}
	return Cond{op: op, path: path}, nil
}

// comparison finds the earliest == or !=.
func comparison(s string) (int, condOp) {
	eq, ne := strings.Index(s, "=="), strings.Index(s, "!=")
	switch {
	case eq < 0 && ne < 0:
		return -1, condAlways
	case ne < 0 || eq >= 0 && eq < ne:
		return eq, condEqual
	}
	return ne, condUnequal
}

func parsePath(s string) ([]string, bool) {
	segments := strings.Split(s, ".")
	for _, seg := range segments {
		if seg == "" {
			return nil, false
		}
		for i := range len(seg) {
			c := seg[i]
			if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
				return nil, false
			}
		}
	}
	return segments, true
}

// parseLiteral reads one JSON scalar. Integers and floats stay apart.
func parseLiteral(s string) (any, bool) {
	v, err := contextwire.Decode(contextwire.JSON, []byte(s), contextwire.Limits{MaxDepth: 1})
	if err != nil {
		return nil, false
	}
	switch v.(type) {
	case map[string]any, []any:
		return nil, false
	}
	return v, true
}

// Eval reports whether the condition holds for state, which is of the JSON data
// model. It never fails. Equality is without coercion: 1, 1.0 and "1" are three
// values (1.0 and 1e0 are one), and what is missing equals nothing, null included.
// A path goes through objects only. Falsy are false, null, missing, "", 0, 0.0,
// empty lists and empty objects.
func (c Cond) Eval(state map[string]any) bool {
	if c.op == condAlways {
		return true
	}
	v, there := lookup(state, c.path)
	switch c.op {
	case condEqual:
		return there && same(v, c.literal)
	case condUnequal:
		return !there || !same(v, c.literal)
	case condExists:
		return there
	case condTruthy:
		return truthy(v)
	}
	return !truthy(v)
}

func lookup(state map[string]any, path []string) (any, bool) {
	var v any = state
	for _, seg := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil, false
		}
		if v, ok = m[seg]; !ok {
			return nil, false
		}
	}
	return v, true
}

// same compares with a scalar. int and int64 are one representation, since both
// write 1.
func same(v, literal any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return whole(v) == whole(literal)
}

func whole(v any) any {
	switch n := v.(type) {
	case int:
		return int64(n)
	case uint64:
		if n <= 1<<63-1 {
			return int64(n)
		}
	}
	return v
}

func truthy(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	switch whole(v) {
	case int64(0), float64(0):
		return false
	}
	return true
}
