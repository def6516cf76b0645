package archtest_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What is logged can be searched for: messages are constant, keys are words of
// their own, and what has a fixed key has no other (docs/observability.md, Logs).
func TestLogRecords(t *testing.T) {
	holds(t, logRecords)
	samples(t, logRecords, []sample{
		{name: "as it should be", files: map[string]string{"a.go": `package bus; func f() { x.log.Warn("cannot send", "module_id", id, "cause", err) }`}},
		{name: "a made-up message", files: map[string]string{"a.go": `package bus; func f() { log.Error("cannot send " + id) }`}, want: []string{"constant message"}},
		{name: "a synonym", files: map[string]string{"a.go": `package bus; func f() { n.log.Info("x", "err", err) }`}, want: []string{`"err"`}},
		{name: "camel case", files: map[string]string{"a.go": `package bus; func f() { log.Info("x", "moduleID", id) }`}, want: []string{`"moduleID"`}},
		{name: "an attribute", files: map[string]string{"a.go": `package bus; import "log/slog"; func f() { _ = slog.String("module", id) }`}, want: []string{`"module"`}},
		{name: "with a context", files: map[string]string{"a.go": `package bus; func f() { g.log.DebugContext(ctx, "x", "error", err) }`}, want: []string{`"error"`}},
		{name: "not a logger", files: map[string]string{"a.go": `package bus; func f() { t.Error(err + "x") ; w.Info(a, "Err") }`}},
		{name: "in a test", files: map[string]string{"a_test.go": `package bus_test; func f() { log.Info("x", "err", err) }`}},
	})
}

// synonyms are keys that stand for one of the fixed keys.
var synonyms = map[string]string{
	"err": "cause", "error": "cause", "module": "module_id", "call": "call_id", "trace": "trace_id",
	"task": "task_id", "node_id": "node", "error_code": "code", "duration": "duration_ms",
}

var logKey = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

func logRecords(p *goPackage) []string {
	var findings []string
	for _, f := range p.production() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f.isSelector(call.Fun, "log/slog", "Group") {
				return false // its keys are below one of their own
			}
			if f.isSelector(call.Fun, "log/slog", "String", "Int", "Int64", "Float64", "Bool", "Any", "Time", "Duration") && len(call.Args) == 2 {
				findings = append(findings, badKey(f, call.Args[0])...)
				return true
			}
			args, ok := logged(call)
			if !ok {
				return true
			}
			if !constant(args[0]) {
				findings = append(findings, f.at(call)+": a log record needs a constant message")
			}
			for i := 1; i+1 < len(args); i += 2 {
				findings = append(findings, badKey(f, args[i])...)
			}
			return true
		})
	}
	return findings
}

// logged returns message and attributes of a call of a logger, by the names that
// loggers have here: log, l.log, o.Logger, calm.
func logged(call *ast.CallExpr) ([]ast.Expr, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, false
	}
	receiver := ""
	switch x := sel.X.(type) {
	case *ast.Ident:
		receiver = x.Name
	case *ast.SelectorExpr:
		receiver = x.Sel.Name
	}
	if !slices.Contains([]string{"log", "Logger", "logger", "calm"}, receiver) {
		return nil, false
	}
	name, withContext := strings.CutSuffix(sel.Sel.Name, "Context")
	if !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "warn"}, name) {
		return nil, false
	}
	args := call.Args
	if withContext && len(args) > 0 {
		args = args[1:]
	}
	return args, len(args) > 0
}

// constant reports whether a message is written where it is logged, or a name for
// what is.
func constant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING
	case *ast.Ident:
		return true
	}
	return false
}

func badKey(f *goFile, e ast.Expr) []string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return nil
	}
	key, err := strconv.Unquote(lit.Value)
	if err != nil {
		return nil
	}
	if other := synonyms[key]; other != "" {
		return []string{fmt.Sprintf("%s: log key %q is called %q here", f.at(e), key, other)}
	}
	if !logKey.MatchString(key) {
		return []string{fmt.Sprintf("%s: log key %q is not in lower case with underscores", f.at(e), key)}
	}
	return nil
}
