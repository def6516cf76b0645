package system_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/executor/approval"
	"github.com/apbus/apbus/executor/system"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// town is a bus of executors, as a fleet reaches them.
type town struct {
	nodes  map[string]*bench
	frozen map[string]bool // answer nothing
	absent []system.Peer
	lost   []system.Peer

	mu    sync.Mutex
	asked []contextwire.Request
}

func (w *town) Invoke(ctx context.Context, req *contextwire.Request) (*contextwire.Reply, error) {
	w.mu.Lock()
	w.asked = append(w.asked, *req)
	w.mu.Unlock()
	b := w.nodes[req.Node]
	switch {
	case w.frozen[req.Node]:
		<-ctx.Done()
		if cancel.ReasonOf(context.Cause(ctx)) != cancel.Caller { // the answer of the owner is awaited beyond its time
			<-time.After(5 * time.Second)
		}
		return nil, module.Wrap(module.CodeExecutionCancelled, context.Cause(ctx), "the call was cancelled")
	case b == nil:
		return nil, module.Errorf(module.CodeModuleNotFound, "module %s is not known on the bus", req.ModuleID)
	}
	reply, err := b.Invoke(ctx, req)
	if reply != nil {
		reply.Node, reply.Boot = req.Node, "life"
	}
	if err != nil {
		e := *module.Propagate(err, req.ModuleID, req.Context)
		e.Remote = true
		return reply, &e
	}
	return reply, nil
}

func (w *town) Check(ctx context.Context, req *contextwire.Request) (*module.PreflightResult, error) {
	return w.nodes["n1"].Check(ctx, req)
}

func (w *town) peers(string) (m system.Members) {
	for _, id := range []string{"n3", "n2", "n1"} {
		if w.nodes[id] != nil || w.frozen[id] {
			m.Hosting = append(m.Hosting, system.Peer{Node: id, Boot: "earlier"}, system.Peer{Node: id, Boot: "life"})
		}
	}
	m.Absent, m.Lost = w.absent, w.lost
	return m
}

// newTown makes nodes of all groups; a frozen one has none.
func newTown(t *testing.T, opts map[string][]executor.Option, frozen ...string) (*town, *system.Fleet) {
	t.Helper()
	w := &town{nodes: map[string]*bench{}, frozen: map[string]bool{}}
	for id, o := range opts {
		w.nodes[id] = newBench(t, system.Options{Groups: allGroups(), Project: "shop"}, o...)
	}
	for _, id := range frozen {
		w.frozen[id] = true
	}
	f, err := system.NewFleet(w, w.peers, system.FleetOptions{Groups: allGroups()})
	if err != nil {
		t.Fatal(err)
	}
	return w, f
}

func ask(t *testing.T, f *system.Fleet, id string, in obj) obj {
	t.Helper()
	reply, err := f.Invoke(t.Context(), &contextwire.Request{ModuleID: id, Inputs: in, CallID: "root-call-00000000000"})
	if err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	d, _ := f.Descriptor(id)
	s, err := schema.Compile(d.OutputSchema)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(reply.Output); err != nil {
		t.Errorf("%s: the answer breaks the schema: %v\n%v", id, err, reply.Output)
	}
	return reply.Output
}

// who lists the nodes of some rows.
func who(rows any) []string {
	out := []string{}
	for _, r := range rows.([]any) {
		out = append(out, r.(obj)["node"].(string))
	}
	return out
}

// row finds the row of a module.
func row(t *testing.T, out obj, id string) obj {
	t.Helper()
	for _, m := range out["modules"].([]any) {
		if m := m.(obj); m["module_id"] == id {
			return m
		}
	}
	t.Fatalf("no row of %s in %v", id, out["modules"])
	return nil
}

// One question, one deadline: who answered what, who did not, who has no such
// module, and the summary over those that answered.
func TestFleetHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newTown(t, map[string][]executor.Option{"n1": nil, "n2": nil}, "n3")
		w.absent = []system.Peer{{Node: "n4", Boot: "life"}}
		w.lost = []system.Peer{{Node: "n0", Boot: "former"}}
		w.nodes["n1"].add(t, failing("a", 1), failing("b", 0))
		w.nodes["n2"].add(t, failing("a", 5), named("c"))
		for _, node := range []string{"n1", "n2"} {
			for range 10 {
				_, _ = w.nodes[node].Call(t.Context(), "a", nil)
			}
		}
		for range 10 {
			_, _ = w.nodes["n1"].Call(t.Context(), "b", nil)
		}
		began := time.Now()
		out := ask(t, f, "system.health.summary", obj{"include_healthy": false})
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it took %v, want the 2 s that the nodes have", took)
		}
		if d := cmp.Diff([][]string{{"n1", "n2"}, {"n0", "n3"}, {"n4"}}, [][]string{who(out["nodes"]), who(out["silent"]), who(out["absent"])}); d != "" {
			t.Error(d)
		}
		for i, want := range []string{"BUS_NODE_LOST", "MODULE_TIMEOUT"} {
			if code := out["silent"].([]any)[i].(obj)["error"].(obj)["code"]; code != want {
				t.Errorf("silent node %d: %v, want %s", i, code, want)
			}
		}
		a := row(t, out, "a")
		if a["status"] != "error" || a["error_rate"] != 0.5 || a["top_error"].(obj)["count"] != int64(5) {
			t.Errorf("a is %v, want the worst of both", a)
		}
		// a in error, b healthy and so not listed, c and the nine system modules unknown
		want := obj{"total_modules": int64(12), "healthy": int64(1), "degraded": int64(0), "error": int64(1), "unknown": int64(10)}
		if d := cmp.Diff(want, out["summary"]); d != "" {
			t.Error(d)
		}
		if rows := out["modules"].([]any); len(rows) != 11 {
			t.Errorf("%d rows, want all but the healthy one", len(rows))
		}
	})
}

func TestFleetUsage(t *testing.T) {
	w, f := newTown(t, map[string][]executor.Option{"n1": nil, "n2": nil})
	for node, n := range map[string]int{"n1": 3, "n2": 5} {
		w.nodes[node].add(t, failing("a", 1))
		for range n {
			_, _ = w.nodes[node].Call(t.Context(), "a", nil)
		}
	}
	out := ask(t, f, "system.usage.summary", obj{"period": "1h"})
	a := row(t, out, "a")
	if a["call_count"] != int64(8) || a["error_count"] != int64(2) || out["total_calls"] != int64(8) || out["total_errors"] != int64(2) || out["period"] != "1h" {
		t.Errorf("usage %v", out)
	}
	out = ask(t, f, "system.usage.module", obj{"module_id": "a"})
	counts := []any{}
	for _, n := range out["nodes"].([]any) {
		counts = append(counts, n.(obj)["output"].(obj)["call_count"])
	}
	if d := cmp.Diff([]any{int64(3), int64(5)}, counts); d != "" {
		t.Error(d)
	}
}

// Each module once, with its nodes; what differs between nodes has a row for each.
func TestFleetManifest(t *testing.T) {
	w, f := newTown(t, map[string][]executor.Option{"n1": nil, "n2": nil})
	other := named("forked")
	other.desc.Description = "another"
	w.nodes["n1"].add(t, named("same"), named("forked"))
	w.nodes["n2"].add(t, named("same"), other)
	out := ask(t, f, "system.manifest.full", obj{"include_schemas": false})
	got := map[string][]any{}
	for _, m := range out["modules"].([]any) {
		if id := m.(obj)["module_id"].(string); id == "same" || id == "forked" {
			got[id] = append(got[id], m.(obj)["nodes"])
		}
	}
	want := map[string][]any{"same": {[]any{"n1", "n2"}}, "forked": {[]any{"n1"}, []any{"n2"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if out["project_name"] != "shop" || out["module_count"] != int64(12) {
		t.Errorf("%v, %v modules", out["project_name"], out["module_count"])
	}
}

// A change reaches every node, and each tells what became of it.
func TestFleetControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newTown(t, map[string][]executor.Option{"n1": nil, "n2": nil, "n3": nil})
		w.nodes["n1"].add(t, named("a"))
		w.nodes["n2"].add(t, named("a"))
		off := obj{"module_id": "a", "enabled": false, "reason": "a test"}
		out := ask(t, f, "system.control.toggle_feature", off)
		if out["success"] != true { // n3 has no such module
			t.Errorf("answer %v", out)
		}
		if code := out["nodes"].([]any)[2].(obj)["error"].(obj)["code"]; code != "MODULE_NOT_FOUND" {
			t.Errorf("n3: %v", code)
		}
		for _, node := range []string{"n1", "n2"} {
			if _, err := w.nodes[node].Call(t.Context(), "a", nil); module.CodeOf(err) != module.CodeModuleDisabled {
				t.Errorf("on %s: %v", node, err)
			}
		}
		w.frozen["n2"] = true
		began := time.Now()
		if out := ask(t, f, "system.control.toggle_feature", off); out["success"] != false || time.Since(began) != time.Minute {
			t.Errorf("with a frozen node: %v after %v", out, time.Since(began))
		}
	})
}

// The gates are the nodes': their denial is the call's, and each asks for an approval
// of its own.
func TestFleetIsGovernedByItsNodes(t *testing.T) {
	denies := executor.WithApproval(approval.AlwaysDeny{})
	waits := executor.WithApproval(approval.NewMemory(approval.Options{}))
	w, f := newTown(t, map[string][]executor.Option{"n1": {denies}, "n2": {denies}})
	invoke := func(in obj) *module.Error {
		t.Helper()
		reply, err := f.Invoke(t.Context(), &contextwire.Request{ModuleID: "system.control.toggle_feature", Inputs: in})
		if err == nil {
			t.Fatalf("answered %v", reply.Output)
		}
		return module.AsError(err)
	}
	if e := invoke(obj{}); e.Code != module.CodeApprovalDenied || len(e.Details["nodes"].([]any)) != 2 {
		t.Errorf("denied: %v, %v", e, e.Details)
	}
	w.nodes["n1"] = newBench(t, system.Options{Groups: allGroups()}, waits)
	w.nodes["n2"] = newBench(t, system.Options{Groups: allGroups()}, waits)
	in := obj{"module_id": "system.health.module", "enabled": false, "reason": "a test"}
	e := invoke(in)
	ids := map[any]bool{}
	for _, n := range e.Details["nodes"].([]any) {
		ids[n.(obj)["error"].(obj)["details"].(obj)["approval_id"]] = true
	}
	if e.Code != module.CodeApprovalPending || len(ids) != 2 || ids[nil] || e.Details["approval_id"] != nil {
		t.Errorf("pending: %v, %v", e, e.Details)
	}
	in["_approval_token"] = "one of them"
	if e := invoke(in); e.Code != module.CodeInvalidInput {
		t.Errorf("a token for all: %v", e)
	}
}

// What names its node, and what is no system module, goes on as it came.
func TestFleetLeavesOtherCallsAlone(t *testing.T) {
	w, f := newTown(t, map[string][]executor.Option{"n1": nil, "n2": nil})
	w.nodes["n2"].add(t, named("a"))
	for _, req := range []*contextwire.Request{
		{ModuleID: "system.manifest.module", Node: "n2", Inputs: obj{"module_id": "a"}}, {ModuleID: "a", Node: "n2"},
	} {
		w.asked = nil
		reply, err := f.Invoke(t.Context(), req)
		if err != nil || reply.Output["nodes"] != nil || len(w.asked) != 1 {
			t.Errorf("%s: %+v, %v, %d calls", req.ModuleID, reply, err, len(w.asked))
		}
	}
	delete(w.nodes, "n1")
	delete(w.nodes, "n2")
	if _, err := f.Invoke(t.Context(), &contextwire.Request{ModuleID: "system.health.summary"}); module.CodeOf(err) != module.CodeModuleNotFound {
		t.Errorf("without nodes: %v", err)
	}
}

// The caller's time is the nodes' time, a little shortened, and its cancel theirs.
func TestFleetObeysItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, f := newTown(t, map[string][]executor.Option{"n1": nil}, "n2")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		reply, err := f.Invoke(ctx, &contextwire.Request{ModuleID: "system.health.summary", CallID: "c", Root: "r", Trace: true})
		if err != nil || ctx.Err() != nil || len(reply.Output["silent"].([]any)) != 1 {
			t.Fatalf("%+v, %v, %v", reply, err, ctx.Err())
		}
		if a := w.asked[0]; a.Parent != "c" || a.Root != "r" || a.CallID != "" || a.Budget != 810*time.Millisecond {
			t.Errorf("asked with %+v", a)
		}
		if n := contextwire.CountTraceCalls(reply.Trace); n != 2 {
			t.Errorf("the trace holds %d calls: %v", n, reply.Trace)
		}
		leave, quit := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { quit(cancel.Because(cancel.Caller, "", "enough")) })
		w.frozen["n1"] = true
		began := time.Now()
		if reply, err := f.Invoke(leave, &contextwire.Request{ModuleID: "system.health.summary"}); err == nil || time.Since(began) != time.Millisecond {
			t.Errorf("cancelled: %v, %v after %v", reply, err, time.Since(began))
		}
	})
}

// What the fleet hosts is described like what it stands for, but for the answer.
func TestFleetDescriptors(t *testing.T) {
	w, f := newTown(t, map[string][]executor.Option{"n1": nil})
	list := f.Descriptors()
	if len(list) != 9 {
		t.Fatalf("%d modules", len(list))
	}
	for _, d := range list {
		node, ok := w.nodes["n1"].Registry().Definition(d.ID)
		if !ok {
			t.Fatalf("%s is no system module", d.ID)
		}
		if diff := cmp.Diff([]any{node.Annotations, node.InputSchema, node.Tags}, []any{d.Annotations, d.InputSchema, d.Tags}); diff != "" {
			t.Errorf("%s: %s", d.ID, diff)
		}
		if cmp.Equal(node.OutputSchema, d.OutputSchema) || d.Description == node.Description {
			t.Errorf("%s looks like that of a node", d.ID)
		}
	}
	if _, err := system.NewFleet(w, w.peers, system.FleetOptions{Groups: []system.Group{"other"}}); module.CodeOf(err) != module.CodeInvalidInput {
		t.Errorf("an unknown group: %v", err)
	}
}
