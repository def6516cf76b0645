package acl_test

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/apbus/apbus/executor/acl"
	"github.com/apbus/apbus/module"
)

type obj = map[string]any

func allow(callers, targets string) acl.Rule {
	return acl.Rule{Callers: strings.Fields(callers), Targets: strings.Fields(targets), Effect: acl.Allow}
}

func deny(callers, targets string) acl.Rule {
	r := allow(callers, targets)
	r.Effect = acl.Deny
	return r
}

func when(r acl.Rule, conditions any) acl.Rule {
	r.Conditions = conditions
	return r
}

func approved(r acl.Rule) acl.Rule {
	r.Approval = acl.Required
	return r
}

func mustNew(t testing.TB, o acl.Options, rules ...acl.Rule) *acl.Policy {
	t.Helper()
	p, err := acl.New(rules, o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return p
}

// call makes a context with an identity of the given type and roles and a chain
// of the given length.
func call(depth int, typ string, roles ...string) *module.Context {
	var id *module.Identity
	if typ != "" {
		id = module.NewIdentity("someone", typ, roles, nil)
	}
	c := module.NewContext(module.ContextOptions{Identity: id})
	for i := range depth {
		c = c.Child("hop.n" + strconv.Itoa(i))
	}
	return c
}

// logBuffer is a log that several goroutines may write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: acl.LevelTrace}))
}

func failing(context.Context, any, acl.Query) (bool, error)   { panic("secret value") }
func holding(context.Context, any, acl.Query) (bool, error)   { return true, nil }
func rejecting(context.Context, any, acl.Query) (bool, error) { return false, nil }
