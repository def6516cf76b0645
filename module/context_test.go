package module_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/module"
)

func TestNewContextDefaults(t *testing.T) {
	log := logged(t)
	c := module.NewContext(module.ContextOptions{})
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(c.TraceID()) {
		t.Errorf("trace id %q", c.TraceID())
	}
	if c.Identity() != nil || c.Executor() != nil || c.Token() != nil || c.Services() != nil || !c.GlobalDeadline().IsZero() ||
		c.CallerID() != "" || len(c.CallChain()) != 0 || c.Data().Len() != 0 || c.RedactedInputs() != nil || c.RedactedOutput() != nil {
		t.Errorf("something is set: %v", c.Wire())
	}
	equal(t, "call", c.Call(), module.CallInfo{})
	if warnings(log) != 0 {
		t.Errorf("log: %s", log)
	}
	if module.NewContext(module.ContextOptions{}).TraceID() == c.TraceID() {
		t.Error("two contexts share a trace")
	}
}

func TestNewContextInputs(t *testing.T) {
	id, token, services := module.NewIdentity("u", "", nil, nil), cancel.NewToken(), &struct{ name string }{"db"}
	deadline := time.Unix(1_234_567_890, 500_000_000)
	data := obj{"k": "v"}
	state := []module.TraceState{{Key: "a", Value: "1"}}
	c := module.NewContext(module.ContextOptions{
		Identity: id, TraceParent: &module.TraceParent{TraceID: traceID, Flags: "00", State: state},
		CancelToken: token, Data: data, Services: services, GlobalDeadline: deadline,
	})
	if c.Identity() != id || c.Token() != token || c.Services() != services || !c.GlobalDeadline().Equal(deadline) || c.TraceID() != traceID {
		t.Error("an input was not taken as it is")
	}
	if c.Executor() != nil || c.CallerID() != "" || len(c.CallChain()) != 0 {
		t.Error("what is no input is set")
	}
	data["k"], state[0].Value = "changed", "changed"
	equal(t, "data", c.Data().All(), obj{
		"k": "v", module.DataTraceFlags: "00", module.DataTraceState: []module.TraceState{{Key: "a", Value: "1"}},
	})
	if len(data) != 1 {
		t.Errorf("the caller's map was written: %v", data)
	}
}

func TestNewContextTraceParent(t *testing.T) {
	for _, tt := range []struct {
		name, id string
		accepted bool
	}{
		{"valid", traceID, true},
		{"dashed UUID", "0af76519-16cd-43dd-8448-eb211c80319c", false},
		{"upper case", strings.ToUpper(traceID), false},
		{"all zero", strings.Repeat("0", 32), false},
		{"all f", strings.Repeat("f", 32), false},
		{"short", traceID[:31], false},
		{"long", traceID + "0000", false},
		{"not hex", strings.Repeat("g", 32), false},
		{"empty", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := logged(t)
			c := module.NewContext(module.ContextOptions{TraceParent: &module.TraceParent{
				TraceID: tt.id, Flags: "01", State: []module.TraceState{{Key: "a", Value: "1"}},
			}})
			if got := c.TraceID() == tt.id; got != tt.accepted {
				t.Errorf("trace id %q", c.TraceID())
			}
			if !module.ValidTraceID(c.TraceID()) {
				t.Errorf("trace id %q is invalid", c.TraceID())
			}
			if got := warnings(log) == 0; got != tt.accepted {
				t.Errorf("log: %s", log)
			}
			if _, kept := c.Data().Get(module.DataTraceState); kept != tt.accepted {
				t.Errorf("state kept: %v", kept)
			}
		})
	}
}

func TestContextChild(t *testing.T) {
	x := &executor{}
	token := cancel.NewToken()
	root := module.NewContext(module.ContextOptions{
		Identity: module.NewIdentity("u", "", nil, nil), CancelToken: token, Services: "services", GlobalDeadline: time.Unix(1, 0),
	})
	if err := root.BindExecutor(x); err != nil {
		t.Fatal(err)
	}
	root.SetRedactedInputs(func() map[string]any { return obj{} })
	first := root.Child("a.one")
	second := first.Child("b.two")
	for _, tt := range []struct {
		name   string
		c      *module.Context
		caller string
		chain  []string
	}{
		{"first", first, "", []string{"a.one"}},
		{"second", second, "a.one", []string{"a.one", "b.two"}},
		{"sibling", first.Child("c.three"), "a.one", []string{"a.one", "c.three"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.c
			if c.CallerID() != tt.caller {
				t.Errorf("caller %q", c.CallerID())
			}
			equal(t, "chain", c.CallChain(), tt.chain)
			equal(t, "view", c.ChainView(), tt.chain)
			if c.TraceID() != root.TraceID() || c.Identity() != root.Identity() || c.Executor() != module.Executor(x) || c.Token() != token ||
				c.Services() != "services" || !c.GlobalDeadline().Equal(root.GlobalDeadline()) || c.Data() != root.Data() {
				t.Error("something was not inherited")
			}
			if c.RedactedInputs() != nil {
				t.Error("redacted inputs belong to one call")
			}
		})
	}
	second.CallChain()[0] = "changed"
	equal(t, "chain of the parent", first.CallChain(), []string{"a.one"})
	if restored := module.RestoreContext(module.ContextWire{CallerID: "x"}).Child("a"); restored.CallerID() != "" {
		t.Errorf("caller %q comes from somewhere else than the chain", restored.CallerID())
	}
}

func TestContextEnter(t *testing.T) {
	parent := module.NewContext(module.ContextOptions{Identity: module.NewIdentity("u", "", nil, nil), CancelToken: cancel.NewToken()})
	token, other := cancel.NewToken(), module.NewIdentity("other", "", nil, nil)
	c := parent.Enter("a", module.CallScope{
		Token: token, GlobalDeadline: time.Unix(5, 0), Call: module.CallInfo{ID: "c1", Attempt: 2}, Identity: other, TraceID: traceID,
		Progress: func(module.ProgressReport) {},
	})
	if c.Token() != token || c.GlobalDeadline().Unix() != 5 || c.Identity() != other || c.TraceID() != traceID {
		t.Error("the scope was not taken")
	}
	equal(t, "call", c.Call(), module.CallInfo{ID: "c1", Attempt: 2})
	// A nested call in the same process belongs to the bus call around it.
	nested := c.Enter("b", module.CallScope{})
	equal(t, "call of a nested call", nested.Call(), c.Call())
	if nested.Token() != nil || !nested.GlobalDeadline().IsZero() || nested.Identity() != other || nested.TraceID() != traceID {
		t.Error("token and deadline are the scope's, identity and trace are inherited")
	}
	if parent.Identity() == other || parent.Call().ID != "" || len(parent.CallChain()) != 0 {
		t.Error("the parent was written")
	}
}

func TestBindExecutor(t *testing.T) {
	stored := func(c *module.Context) *module.Context { // as text, as a task store keeps it
		w := c.Wire()
		m := hop(t, obj{"trace_id": w.TraceID, "caller_id": w.CallerID, "data": w.Data, "identity": w.Identity.Map()})
		id, err := module.IdentityFromMap(m["identity"].(obj))
		if err != nil {
			t.Fatal(err)
		}
		return module.RestoreContext(module.ContextWire{
			TraceID: m["trace_id"].(string), CallerID: m["caller_id"].(string), CallChain: w.CallChain, Identity: id, Data: m["data"].(obj),
		})
	}
	bound := func() *module.Context {
		c := module.NewContext(module.ContextOptions{
			Identity: module.NewIdentity("u", "", nil, nil), CancelToken: cancel.NewToken(), Services: 1, GlobalDeadline: time.Unix(1, 0),
		})
		if err := c.BindExecutor(&executor{}); err != nil {
			t.Fatal(err)
		}
		return c.Child("a.one")
	}
	for _, tt := range []struct {
		name string
		c    *module.Context
	}{
		{"created here", module.NewContext(module.ContextOptions{})},
		{"deserialized after a hop", module.RestoreContext(bound().Wire())},
		{"restored from a stored task", stored(bound())},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.c
			if c.Executor() != nil || c.Token() != nil || c.Services() != nil || !c.GlobalDeadline().IsZero() {
				t.Fatal("something local crossed")
			}
			mine, other := &executor{}, &executor{}
			for range 3 {
				if err := c.BindExecutor(mine); err != nil {
					t.Fatal(err)
				}
			}
			hasCode(t, c.BindExecutor(other), module.CodeContextBindingError)
			if c.Executor() != module.Executor(mine) || c.Child("b.two").Executor() != module.Executor(mine) {
				t.Error("the bound executor is not stable")
			}
			hasCode(t, c.Child("b.two").BindExecutor(other), module.CodeContextBindingError)
		})
	}
}

func TestContextWire(t *testing.T) {
	c := module.RestoreContext(module.ContextWire{
		TraceID: "550e8400-e29b-41d4-a716-446655440000", CallerID: "api.handler", CallChain: []string{"api.handler", "a"},
		Data: obj{"request_id": "r", "_private": 1, "_apcore.mw.x": 2},
	})
	c.Data().Set("_later", 3)
	c.Data().Set("later", 4)
	c.SetRedactedOutput(func() map[string]any { return obj{"out": 1} })
	want := module.ContextWire{
		TraceID: "550e8400-e29b-41d4-a716-446655440000", CallerID: "api.handler", CallChain: []string{"api.handler", "a"},
		Data: obj{"request_id": "r", "later": 4}, RedactedOutput: obj{"out": 1},
	}
	w := c.Wire()
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	w.CallChain[0], w.Data["new"] = "changed", true
	if c.CallChain()[0] != "api.handler" || c.Data().Len() != 3 {
		t.Error("the wire part shares the chain or the data")
	}
	if w.Identity != nil || module.RestoreContext(w).Identity() != nil {
		t.Error("a null identity must stay null")
	}
	if _, private := module.RestoreContext(module.ContextWire{Data: obj{"_x": 1, "y": 2}}).Data().Get("_x"); private {
		t.Error("a private key came in from outside")
	}
	back := module.RestoreContext(module.ContextWire{RedactedInputs: obj{"in": 1}, RedactedOutput: obj{"out": 1}})
	equal(t, "redacted inputs", back.RedactedInputs(), obj{"in": 1})
	equal(t, "redacted output", back.RedactedOutput(), obj{"out": 1})
	back.Data().Set("k", "v") // a nil map is no trap
}

func TestRedactedViewsAreMadeOnce(t *testing.T) {
	c := module.NewContext(module.ContextOptions{})
	var inputs, output atomic.Int32
	c.SetRedactedInputs(func() map[string]any { inputs.Add(1); return obj{"n": "***"} })
	c.SetRedactedOutput(func() map[string]any {
		output.Add(1)
		return obj{"in": c.RedactedInputs()} // may read the other one
	})
	if inputs.Load()+output.Load() != 0 {
		t.Fatal("made before anybody asked")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := c.RedactedOutput(); got["in"].(obj)["n"] != "***" {
				t.Errorf("output %v", got)
			}
			if got := c.RedactedInputs(); got["n"] != "***" {
				t.Errorf("inputs %v", got)
			}
		})
	}
	wg.Wait()
	if inputs.Load() != 1 || output.Load() != 1 {
		t.Errorf("made %d and %d times", inputs.Load(), output.Load())
	}
	c.SetRedactedInputs(func() map[string]any { return obj{"second": true} })
	equal(t, "after step 7", c.RedactedInputs(), obj{"second": true})
	c.SetRedactedInputs(nil)
	if c.RedactedInputs() != nil {
		t.Error("a view that was taken away is still there")
	}
}

func TestRedactedViewThatPanics(t *testing.T) {
	c := module.NewContext(module.ContextOptions{})
	c.SetRedactedInputs(func() map[string]any { panic("broken") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		c.RedactedInputs()
	}()
	if c.RedactedInputs() != nil {
		t.Error("a view that could not be made must show nothing")
	}
}

func TestDataIsSharedByReference(t *testing.T) {
	root := module.NewContext(module.ContextOptions{Data: obj{"k": "v"}})
	child := root.Child("a").Child("b")
	child.Data().Set("from_below", 1)
	if v, ok := root.Data().Get("from_below"); !ok || v != 1 {
		t.Error("a write of a nested call is not seen above")
	}
	root.Data().Delete("k")
	if _, ok := child.Data().Get("k"); ok {
		t.Error("a delete above is not seen below")
	}
	// Another process: copied one way.
	far := module.RestoreContext(root.Wire())
	far.Data().Set("far", 1)
	if _, ok := root.Data().Get("far"); ok {
		t.Error("a write after a hop came back")
	}
	all := root.Data().All()
	all["copy"] = 1
	if _, ok := root.Data().Get("copy"); ok {
		t.Error("All is not a copy")
	}
	equal(t, "all of nothing", module.NewData(nil).All(), obj{})
	equal(t, "public", module.NewData(obj{"_a": 1, "b": 2, "": 3}).Public(), obj{"b": 2, "": 3})
}

func TestDataIsConcurrent(t *testing.T) {
	d := module.NewData(nil)
	var wg sync.WaitGroup
	for _, key := range []string{"a", "b", "_c"} {
		wg.Go(func() {
			for i := range 200 {
				d.Set(key, i)
				d.Get("a")
				d.All()
				d.Public()
				d.Len()
			}
			d.Delete("b")
		})
	}
	wg.Wait()
	if v, _ := d.Get("a"); v != 199 {
		t.Errorf("a = %v", v)
	}
}

func TestFromContext(t *testing.T) {
	if module.FromContext(t.Context()) != nil {
		t.Error("outside a call there is no Context")
	}
	c := module.NewContext(module.ContextOptions{})
	ctx, stop := context.WithCancelCause(module.WithContext(t.Context(), c))
	defer stop(errors.New("test over"))
	if module.FromContext(ctx) != c {
		t.Error("lost below a derived context")
	}
}

func TestContextLogValue(t *testing.T) {
	c := module.NewContext(module.ContextOptions{
		Identity: module.NewIdentity("secret-id", "", nil, nil), Data: obj{"password": "hunter2"}, TraceParent: &module.TraceParent{TraceID: traceID},
	})
	log := logged(t)
	slog.Info("call", "c", c.Child("a.one").Enter("b.two", module.CallScope{Call: module.CallInfo{ID: "c9"}}))
	line := log.String()
	for _, want := range []string{"c.trace_id=" + traceID, "c.module_id=b.two", "c.caller_id=a.one", "c.call_id=c9"} {
		if !strings.Contains(line, want) {
			t.Errorf("%s is missing in %s", want, line)
		}
	}
	for _, secret := range []string{"secret-id", "hunter2"} {
		if strings.Contains(line, secret) {
			t.Errorf("%s is in %s", secret, line)
		}
	}
}
