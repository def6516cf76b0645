//go:build conformance

package conformance_test

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// listen takes the default logger for the rest of the case.
func (c *kase) listen() *journal {
	j := &journal{}
	before := slog.Default()
	slog.SetDefault(j.logger())
	c.t.Cleanup(func() { slog.SetDefault(before) })
	return j
}

// contextOptions reads the inputs of Context.create that a case gives.
func contextOptions(c *kase, in *node) module.ContextOptions {
	var o module.ContextOptions
	if m := in.opt("identity").fields(); m != nil {
		o.Identity = identityOf("", m)
	}
	if in.has("cancel_token_handle") {
		in.at("cancel_token_handle").str()
		o.CancelToken = cancel.NewToken()
	}
	if in.has("global_deadline") {
		o.GlobalDeadline = in.at("global_deadline").seconds()
	}
	if n := in.opt("trace_parent"); !n.null() {
		o.TraceParent = &module.TraceParent{TraceID: n.at("trace_id").str(), ParentID: n.at("parent_id").str(), Flags: n.at("trace_flags").str()}
		for _, pair := range n.at("tracestate").list() {
			kv := pair.strs()
			o.TraceParent.State = append(o.TraceParent.State, module.TraceState{Key: kv[0], Value: kv[1]})
		}
	}
	return o
}

// seconds is a time in Unix seconds, zero for null.
func (n *node) seconds() time.Time {
	switch x := n.raw().(type) {
	case nil:
		return time.Time{}
	case float64:
		return time.UnixMicro(int64(x * 1e6))
	case int64:
		return time.Unix(x, 0)
	}
	n.r.Fatalf("driver: %s is no time", n.path)
	return time.Time{}
}

// echo is a module that tells what its Context is bound to.
func echo(id string, bound *[]module.Executor) *mod {
	return function(id, func(ctx context.Context, _ map[string]any) (map[string]any, error) {
		*bound = append(*bound, module.FromContext(ctx).Executor())
		return map[string]any{}, nil
	})
}

func driveContextCreate(c *kase) {
	in, want := c.at("input"), c.at("expected")
	switch c.id {
	case "create_rejects_executor_input", "create_rejects_caller_id_input":
		in.raw()
		// The six inputs, no more: what is no field cannot be passed.
		var names []string
		for _, f := range reflect.VisibleFields(reflect.TypeFor[module.ContextOptions]()) {
			names = append(names, f.Name)
		}
		six := []string{"Identity", "TraceParent", "CancelToken", "Data", "Services", "GlobalDeadline"}
		equal(c, "inputs", six, names)
		for _, key := range []string{"executor_is_not_a_parameter", "caller_id_is_not_a_parameter"} {
			if want.has(key) {
				want.at(key).must(true)
			}
		}
		if want.has("caller_id_after_create") && module.NewContext(module.ContextOptions{}).CallerID() != want.at("caller_id_after_create").text() {
			c.Errorf("a new context has a caller")
		}
	case "executor_binds_on_first_call_local", "executor_binds_idempotent_same_instance":
		var ids []string
		if in.has("calls") {
			ids = in.at("calls").strs()
			in.at("same_executor").must(true)
		} else {
			ids = in.at("call_module").strs()
		}
		in.at("construction").str()
		var bound []module.Executor
		x := c.executor(nil, echo(ids[0], &bound))
		mc := module.NewContext(module.ContextOptions{})
		if mc.Executor() != nil || !want.opt("executor_at_create_time").null() {
			c.Errorf("a new context is bound")
		}
		for _, id := range ids {
			_, err := x.Call(module.WithContext(c.t.Context(), mc), id, nil)
			c.wantCode(err, "")
		}
		for _, b := range bound {
			if b != module.Executor(x) {
				c.Errorf("bound to another executor")
			}
		}
		if len(bound) != len(ids) {
			c.Errorf("%d calls ran", len(bound))
		}
		for _, key := range []string{"call_succeeded", "rebind_noop", "executor_identity_stable"} {
			if want.has(key) {
				want.at(key).must(true)
			}
		}
		for _, key := range []string{"raised_binding_error", "raised_error"} {
			want.opt(key).must(false)
		}
	case "executor_rejects_cross_executor_rebind":
		in.at("executor_a_first").must(true)
		in.at("executor_b_second").must(true)
		in.at("same_executor").must(false)
		want.at("raises").must(true)
		var bound []module.Executor
		a, b := c.executor(nil, echo("test.echo", &bound)), c.executor(nil, echo("test.echo", &bound))
		mc := module.NewContext(module.ContextOptions{})
		if err := mc.BindExecutor(a); err != nil {
			c.Fatalf("bind: %v", err)
		}
		ctx := module.WithContext(c.t.Context(), mc)
		_, err := a.Call(ctx, "test.echo", nil)
		c.wantCode(err, "")
		_, err = b.Call(ctx, "test.echo", nil)
		c.wantCode(err, want.at("error_code").str())
		c.wantCode(mc.BindExecutor(b), want.at("error_code").str())
		if len(bound) != 1 {
			c.Errorf("%d calls ran", len(bound))
		}
	case "child_propagates_executor":
		in.at("bind_executor").must(true)
		target := in.at("create_child_module_id").str()
		x := c.executor(nil)
		parent := module.RestoreContext(module.ContextWire{TraceID: module.NewTraceID(), CallChain: []string{"a.b", "c.d"}})
		if err := parent.BindExecutor(x); err != nil {
			c.Fatalf("bind: %v", err)
		}
		child := parent.Child(target)
		if (child.Executor() == module.Executor(x)) != want.at("child_executor_matches_parent").flag() {
			c.Errorf("child is bound to %v", child.Executor())
		}
		if (child.CallerID() == "c.d") != want.at("child_caller_id_from_parent_chain_tip").flag() {
			c.Errorf("caller %s", child.CallerID())
		}
		if slices.Equal(child.CallChain(), []string{"a.b", "c.d", target}) != want.at("child_call_chain_appends_target").flag() {
			c.Errorf("chain %v", child.CallChain())
		}
	case "child_propagates_cancel_token":
		in.at("create_with_cancel_token").str()
		tok := cancel.NewToken()
		child := module.NewContext(module.ContextOptions{CancelToken: tok}).Child(in.at("create_child_module_id").str())
		if (child.Token() != nil) != want.at("child_cancel_token_bound").flag() || (child.Token() == tok) != want.at("child_cancel_token_matches_parent").flag() {
			c.Errorf("child's token %p, want %p", child.Token(), tok)
		}
		tok.Cancel(nil)
		if !child.Token().IsCancelled() {
			c.Errorf("the child does not see the cancellation")
		}
	case "deserialize_then_call_binds_local_executor":
		mc, err := contextwire.ContextFromMap(maps.Clone(in.at("serialized_context").fields()))
		if err != nil {
			c.Fatalf("deserialize: %v", err)
		}
		id := in.at("call_module").str()
		wantBare(c, want, mc)
		if mc.CallerID() != want.at("caller_id_preserved").str() {
			c.Errorf("caller %s", mc.CallerID())
		}
		var bound []module.Executor
		x := c.executor(nil, echo(id, &bound))
		_, err = x.Call(module.WithContext(c.t.Context(), mc), id, nil)
		c.wantCode(err, "")
		if (len(bound) == 1 && bound[0] == module.Executor(x)) != want.at("executor_bound_on_first_call").flag() {
			c.Errorf("bound to %v", bound)
		}
	case "distributed_cancel_token_post_deserialize_null", "distributed_global_deadline_post_deserialize_null":
		in.raw()
		mc := module.NewContext(module.ContextOptions{CancelToken: cancel.NewToken(), GlobalDeadline: time.Now().Add(time.Hour), Services: "x"})
		for _, ct := range []contextwire.ContentType{contextwire.JSON, contextwire.MsgPack} {
			body, err := contextwire.EncodeContext(mc, ct)
			if err != nil {
				c.Fatalf("encode: %v", err)
			}
			back, err := contextwire.DecodeContext(body, ct, contextwire.DefaultLimits())
			if err != nil {
				c.Fatalf("decode: %v", err)
			}
			wantBare(c, want, back)
			if strings.Contains(string(body), "token") || strings.Contains(string(body), "deadline") {
				c.Errorf("crosses: %q", body)
			}
		}
		for _, key := range []string{"no_in_context_token_rides_across_processes", "no_remote_deadline_rides_via_global_deadline_field"} {
			if want.has(key) {
				want.at(key).must(true)
			}
		}
	default:
		o := contextOptions(c, in)
		mc := module.NewContext(o)
		judgeContext(c, want, mc, o)
	}
}

// wantBare checks that the local parts of a Context did not cross.
func wantBare(c *kase, want *node, mc *module.Context) {
	for key, absent := range map[string]bool{
		"executor_after_deserialize":        mc.Executor() == nil,
		"cancel_token_after_deserialize":    mc.Token() == nil,
		"services_after_deserialize":        mc.Services() == nil,
		"global_deadline_after_deserialize": mc.GlobalDeadline().IsZero(),
	} {
		if !want.opt(key).null() {
			c.Fatalf("driver: unknown expectation for %s", key)
		}
		if !absent {
			c.Errorf("%s is there", key)
		}
	}
}

func judgeContext(c *kase, want *node, mc *module.Context, o module.ContextOptions) {
	null := func(n *node, absent bool) {
		if n.null() != absent {
			c.Errorf("%s: null = %t", n.path, absent)
		}
	}
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "trace_id_pattern":
			if !regexp.MustCompile(n.str()).MatchString(mc.TraceID()) {
				c.Errorf("trace id %s", mc.TraceID())
			}
		case "trace_id":
			equal(c, key, n.str(), mc.TraceID())
		case "identity":
			null(n, mc.Identity() == nil)
		case "identity_id":
			equal(c, key, n.str(), mc.Identity().ID())
		case "executor", "executor_at_create_time":
			null(n, mc.Executor() == nil)
		case "cancel_token":
			null(n, mc.Token() == nil)
		case "cancel_token_bound", "cancel_token_matches_input":
			if (mc.Token() != nil && mc.Token() == o.CancelToken) != n.flag() {
				c.Errorf("token %p, want %p", mc.Token(), o.CancelToken)
			}
		case "services":
			null(n, mc.Services() == nil)
		case "global_deadline":
			if want := n.seconds(); !mc.GlobalDeadline().Equal(want) {
				c.Errorf("deadline %v, want %v", mc.GlobalDeadline(), want)
			}
		case "caller_id":
			null(n, mc.CallerID() == "")
		case "call_chain":
			equal(c, key, n.strs(), append([]string{}, mc.CallChain()...))
		case "data_empty":
			if (mc.Data().Len() == 0) != n.flag() {
				c.Errorf("data %v", mc.Data().All())
			}
		case "tracestate_preserved":
			state, _ := mc.Data().Get(module.DataTraceState)
			if cmp.Equal(any(o.TraceParent.State), state) != n.flag() {
				c.Errorf("trace state %v, want %v", state, o.TraceParent.State)
			}
		case "no_separate_tracestate_parameter":
			if _, found := reflect.TypeFor[module.ContextOptions]().FieldByName("TraceState"); found == n.flag() {
				c.Errorf("a separate parameter: %t", found)
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func driveContextSerialization(c *kase) {
	log := c.listen()
	switch {
	case c.has("input_identities"):
		types := []string{}
		for _, n := range c.at("input_identities").list() {
			id := identityOf("", n.fields())
			if diff := cmp.Diff(n.fields(), id.Map()); diff != "" {
				c.Errorf("identity (-want +got):\n%s", diff)
			}
			back, err := module.IdentityFromMap(id.Map())
			if err != nil || !back.Equal(id) {
				c.Errorf("reads back as %v, %v", back, err)
			}
			types = append(types, id.Type())
		}
		equal(c, "types", c.at("expected_types").strs(), types)
	case c.has("serialized"):
		mc, err := contextwire.ContextFromMap(maps.Clone(c.at("serialized").fields()))
		if err != nil {
			c.Fatalf("deserialize: %v", err)
		}
		equal(c, "trace id", c.at("expected_trace_id").str(), mc.TraceID())
		if c.has("expected_behavior") {
			if want := c.at("expected_behavior").str(); want != "warn_and_proceed" {
				c.Fatalf("driver: unknown behaviour %s", want)
			}
			if len(log.atLeast(slog.LevelWarn)) != 1 {
				c.Errorf("logged: %s", log.text())
			}
			return
		}
		equal(c, "caller", c.at("expected_caller_id").str(), mc.CallerID())
		equal(c, "chain", c.at("expected_call_chain").strs(), mc.CallChain())
		equal(c, "identity", c.at("expected_identity_id").str(), mc.Identity().ID())
		if _, ok := mc.Data().Get(c.at("expected_data_key").str()); !ok {
			c.Errorf("data %v", mc.Data().All())
		}
	default:
		in := maps.Clone(c.at("input").fields())
		data, _ := in["data"].(map[string]any)
		in["data"] = map[string]any{}
		mc, err := contextwire.ContextFromMap(in)
		if err != nil {
			c.Fatalf("deserialize: %v", err)
		}
		for k, v := range data {
			mc.Data().Set(k, v)
		}
		want := c.at("expected").fields()
		for _, ct := range []contextwire.ContentType{contextwire.JSON, contextwire.MsgPack} {
			body, err := contextwire.EncodeContext(mc, ct)
			if err != nil {
				c.Fatalf("encode: %v", err)
			}
			got, err := contextwire.DecodeMap(ct, body, contextwire.DefaultLimits())
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				c.Errorf("%s (-want +got):\n%s%v", ct, diff, err)
			}
		}
		if c.has("expected_identity_field") {
			identity, _ := contextwire.ContextMap(mc)["identity"].(map[string]any)
			if identity[c.at("expected_identity_field").str()] != c.at("expected_identity_type_value").str() {
				c.Errorf("identity %v", identity)
			}
		}
	}
}

func driveContextTraceParent(c *kase) {
	log := c.listen()
	var o module.ContextOptions
	n := c.at("input").at("trace_parent_trace_id")
	if !n.null() {
		o.TraceParent = &module.TraceParent{TraceID: n.str(), ParentID: "00f067aa0ba902b7"}
	}
	mc := module.NewContext(o)
	want := c.at("expected")
	if want.has("trace_id") {
		equal(c, "trace id", want.at("trace_id").str(), mc.TraceID())
	}
	if got := mc.TraceID() != n.text(); got != want.at("regenerated").flag() {
		c.Errorf("regenerated = %t (%s)", got, mc.TraceID())
	}
	if !module.ValidTraceID(mc.TraceID()) {
		c.Errorf("trace id %s", mc.TraceID())
	}
	warnings := log.atLeast(slog.LevelWarn)
	if got := len(warnings) > 0; got != want.at("warn_logged").flag() {
		c.Errorf("warned = %t: %s", got, log.text())
	}
}

func driveIdentity(c *kase) {
	roles, attrs := c.at("input_roles").strs(), maps.Clone(c.at("input_attrs").fields())
	id := module.NewIdentity(c.at("input_id").str(), c.opt("input_type").text(), roles, attrs)
	equal(c, "id", c.at("input_id").str(), id.ID())
	// Neither what went in nor what came out changes it.
	before := id.Map()
	for i := range roles {
		roles[i] = "changed"
	}
	attrs["changed"] = true
	for i, out := 0, id.Roles(); i < len(out); i++ {
		out[i] = "changed"
	}
	id.Attrs()["changed"] = true
	equal(c, "after changes from outside", before, id.Map())
	if c.has("expected_type") {
		equal(c, "type", c.at("expected_type").str(), id.Type())
	} else {
		equal(c, "type", c.at("input_type").str(), id.Type())
	}
	if c.has("expected_roles") {
		equal(c, "roles", c.at("expected_roles").strs(), id.Roles())
	}
	if c.has("expected_attrs") {
		equal(c, "attrs", c.at("expected_attrs").fields(), id.Attrs())
	}
	if c.has("child_module_id") {
		if want := c.at("expected").str(); want != "child.identity === parent.identity" {
			c.Fatalf("driver: unknown expectation %s", want)
		}
		parent := module.NewContext(module.ContextOptions{Identity: id})
		if child := parent.Child(c.at("child_module_id").str()); child.Identity() != parent.Identity() || child.Identity() != id {
			c.Errorf("the child has another identity")
		}
	}
}

func driveCallChain(c *kase) {
	chain := c.at("call_chain").strs()
	depth, repeat := executor.DefaultMaxCallDepth, executor.DefaultMaxModuleRepeat
	if c.has("max_call_depth") {
		depth = c.at("max_call_depth").number()
	}
	if c.has("max_module_repeat") {
		repeat = c.at("max_module_repeat").number()
	}
	given := slices.Clone(chain)
	err := executor.GuardCallChain(c.at("module_id").str(), chain, depth, repeat)
	equal(c, "the chain afterwards", given, chain)
	if !c.has("expected_error") {
		if want := c.at("expected").str(); want != "ok" {
			c.Fatalf("driver: unknown expectation %s", want)
		}
		c.wantCode(err, "")
		return
	}
	codes := map[string]module.Code{
		"CALL_DEPTH_EXCEEDED":     module.CodeCallDepthExceeded,
		"CIRCULAR_CALL":           module.CodeCircularCall,
		"CALL_FREQUENCY_EXCEEDED": module.CodeCallFrequencyExceeded,
		"INVALID_LIMIT":           module.CodeInvalidInput, // as the case's own note says
	}
	code, ok := codes[c.at("expected_error").str()]
	if !ok {
		c.Fatalf("driver: unknown code")
	}
	c.wantCode(err, string(code))
}

func driveTraceContext(c *kase) {
	in, want := c.at("input"), c.at("expected")
	headers := make(map[string][]string)
	for _, key := range in.at("headers").keys() {
		n := in.at("headers").at(key)
		if key == "tracestate_entry_count" {
			var list []string
			for i := range n.number() {
				list = append(list, "vendor"+string(rune('0'+i/10))+string(rune('0'+i%10))+"=v")
			}
			headers["tracestate"] = []string{strings.Join(list, ",")}
			continue
		}
		headers[key] = []string{n.str()}
	}
	tp := module.TraceParentFromHeaders(headers)
	if tp == nil {
		c.Fatalf("nothing is read from %v", headers)
	}
	given := 0
	for key, values := range headers {
		if strings.EqualFold(key, "tracestate") {
			given = strings.Count(values[0], ",") + 1
		}
	}
	out, err := tp, error(nil)
	if in.has("inject_parent_id") {
		out, err = tp.WithParentID(in.at("inject_parent_id").str())
	}
	entries := [][]string{}
	for _, s := range tp.State {
		entries = append(entries, []string{s.Key, s.Value})
	}
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "trace_id":
			equal(c, key, n.str(), tp.TraceID)
		case "parent_id":
			equal(c, key, n.str(), tp.ParentID)
		case "trace_flags", "extracted_trace_flags":
			equal(c, key, n.str(), tp.Flags)
		case "injected_trace_flags":
			equal(c, key, n.str(), out.Header()[len(out.Header())-2:])
		case "tracestate_entries":
			var wanted [][]string
			for _, e := range n.list() {
				wanted = append(wanted, e.strs())
			}
			equal(c, key, wanted, entries)
		case "reinjected_tracestate":
			equal(c, key, n.str(), out.StateHeader())
		case "tracestate_retained_count":
			equal(c, key, n.number(), len(entries))
		case "tracestate_dropped_count":
			equal(c, key, n.number(), given-len(entries))
		case "tracestate_first_key":
			equal(c, key, n.str(), entries[0][0])
		case "tracestate_last_key":
			equal(c, key, n.str(), entries[len(entries)-1][0])
		case "extract_succeeded":
			n.must(true)
		case "injected_traceparent":
			equal(c, key, n.str(), out.Header())
		case "parent_id_in_output":
			equal(c, key, n.str(), strings.Split(out.Header(), "-")[2])
		case "error":
			c.wantCode(err, n.at("code").str())
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func driveAnnotations(c *kase) {
	log := c.listen()
	in := c.opt("input")
	if c.has("input_serialized") {
		in = c.at("input_serialized")
	}
	a := module.AnnotationsFromMap(in.fields())
	wire := a.Map()
	extra := a.Extra
	if extra == nil {
		extra = map[string]any{}
	}
	for _, key := range c.keys() {
		switch n := c.at(key); key {
		case "id", "input", "input_serialized":
		case "expected_serialized", "expected_reserialized":
			equal(c, key, n.fields(), wire)
		case "expected_deserialized_extra":
			equal(c, key, n.fields(), extra)
			again := module.AnnotationsFromMap(wire).Extra
			if again == nil {
				again = map[string]any{}
			}
			equal(c, "extra after a round trip", n.fields(), again)
		case "expected_survivors":
			for k, v := range n.fields() {
				equal(c, k, v, wire[k])
			}
		case "expected_warning":
			if got := len(log.atLeast(slog.LevelWarn)) > 0; got != n.flag() {
				c.Errorf("warned = %t: %s", got, log.text())
			}
		case "forbidden_root_keys":
			for _, k := range n.strs() {
				if _, ok := wire[k]; ok {
					c.Errorf("%s is at the root", k)
				}
			}
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}
