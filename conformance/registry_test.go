//go:build conformance

package conformance_test

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/executor/registry"
	"github.com/apbus/apbus/module"
)

func driveNormalizeID(c *kase) {
	got, err := module.NormalizeID(c.at("language").str(), c.at("local_id").str())
	if c.opt("expected_error").flag() {
		e := module.AsError(err)
		if e == nil || e.Code != module.CodeInvalidModuleID {
			c.Fatalf("%q, %v, want INVALID_MODULE_ID", got, err)
		}
		equal(c, "normalized", any(c.at("expected_normalized").str()), e.Details["normalized"])
		return
	}
	c.wantCode(err, "")
	equal(c, "id", c.at("expected").str(), got)
}

func driveIDConflict(c *kase) {
	reg := registry.New(registry.Options{Logger: quiet()})
	for _, word := range c.file.at("reserved_words").strs() {
		c.wantCode(reg.Register(trivial(word+".x")), string(module.CodeInvalidModuleID))
	}
	codes := c.file.at("error_code_by_conflict").fields()
	existing := c.opt("existing_ids").strs()
	for _, id := range existing {
		c.wantCode(reg.Register(trivial(id)), "")
	}
	id := c.at("new_id").str()
	err := reg.Register(trivial(id))
	conflict := module.DetectIDConflict(id, existing)
	want := c.at("expected").text()
	if want == "" {
		c.wantCode(err, "")
		if _, ok := reg.Get(id); !ok || (conflict != nil && conflict.IsError()) {
			c.Errorf("visible %t, conflict %+v", ok, conflict)
		}
		return
	}
	code, ok := codes[want].(string)
	if !ok {
		c.Fatalf("driver: unknown conflict %s", want)
	}
	c.wantCode(err, code)
	if conflict == nil || string(conflict.Kind) != want {
		c.Errorf("conflict %+v, want %s", conflict, want)
	}
}

func driveDependencies(c *kase) {
	var items []registry.LoadItem
	for _, n := range c.at("modules").list() {
		item := registry.LoadItem{ID: n.at("module_id").str(), Version: n.at("version").str()}
		for _, d := range n.at("dependencies").list() {
			item.Dependencies = append(item.Dependencies, module.Dependency{
				ModuleID: d.at("module_id").str(), Version: d.opt("version").text(), Optional: d.opt("optional").flag(),
			})
		}
		items = append(items, item)
	}
	plan, err := registry.LoadOrder(items, nil)
	want := c.at("expected")
	switch outcome := want.at("outcome").str(); outcome {
	case "error":
		c.wantCode(err, want.at("error_code").str())
		e := module.AsError(err)
		for _, key := range []string{"module_id", "dependency_id", "required", "actual"} {
			if e != nil {
				equal(c, key, any(want.at(key).str()), e.Details[key])
			}
		}
	case "ok":
		if err != nil {
			c.Fatalf("refused: %v", err)
		}
		if want.has("load_order") {
			equal(c, "order", want.at("load_order").strs(), plan.Order)
		}
		skipped := [][2]string{}
		for _, n := range want.opt("skipped_edges").list() {
			skipped = append(skipped, [2]string(n.strs()))
		}
		equal(c, "skipped", skipped, append([][2]string{}, plan.Skipped...))
	default:
		c.Fatalf("driver: unknown outcome %s", outcome)
	}
}

func driveNegotiation(c *kase) {
	got, _, err := registry.Negotiate(c.at("declared").str(), c.at("sdk").str())
	if !c.has("expected_error") {
		c.wantCode(err, "")
		equal(c, "version", c.at("expected").str(), got)
		return
	}
	codes := map[string]module.Code{
		"VERSION_INCOMPATIBLE": module.CodeVersionIncompatible,
		"PARSE_ERROR":          module.CodeInvalidInput, // the case leaves the form to the language
	}
	code, ok := codes[c.at("expected_error").str()]
	if !ok {
		c.Fatalf("driver: unknown code")
	}
	c.wantCode(err, string(code))
}

// ConnectionError is what a failing OnLoad of these cases returns.
type ConnectionError struct{ message string }

func (e *ConnectionError) Error() string { return e.message }

// loading is a module with an OnLoad.
type loading struct {
	*mod
	delay   time.Duration
	fails   error
	effects func()
}

func (l *loading) OnLoad(context.Context) error {
	pause(l.delay)
	if l.effects != nil {
		l.effects()
	}
	return l.fails
}

func driveLoadOrdering(c *kase) {
	c.bubble(func(ctx context.Context) {
		var mu sync.Mutex
		var events []module.Event
		reg := registry.New(registry.Options{Logger: quiet(), Events: func(e module.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}})
		setup, trigger := c.at("setup"), c.at("trigger")
		observed := make(map[string]any)
		modules := make(map[string]*loading)
		for _, name := range setup.keys() {
			modules[name] = loadingOf(setup.at(name), observed)
		}
		names := []string{"module"}
		switch action := trigger.at("action").str(); action {
		case "registry.register":
		case "registry.register_concurrent":
			names = trigger.at("modules").strs()
		default:
			c.Fatalf("driver: unknown action %s", action)
		}
		errs := make([]error, len(names))
		var seen []bool
		var wg sync.WaitGroup
		began := time.Now()
		for i, name := range names {
			wg.Go(func() { errs[i] = reg.Register(modules[name]) })
		}
		if check := trigger.opt("concurrent_check"); !check.null() {
			pause(milliseconds(check.at("after_ms")))
			for _, call := range check.at("calls").strs() {
				if id, ok := strings.CutPrefix(call, "registry.get:"); ok {
					_, found := reg.Get(id)
					seen = append(seen, found)
				} else if call == "registry.list" {
					seen = append(seen, len(reg.List(registry.Filter{Hidden: true})) > 0)
				} else {
					c.Fatalf("driver: unknown call %s", call)
				}
			}
		}
		wg.Wait()
		took := time.Since(began)
		judgeLoad(c, reg, modules[names[0]].desc.ID, loadOutcome{errs, seen, observed, events, took})
	})
}

func loadingOf(n *node, observed map[string]any) *loading {
	l := &loading{mod: trivial(n.at("id").str())}
	if n.has("on_load_delay_ms") {
		l.delay = milliseconds(n.at("on_load_delay_ms"))
	}
	if effect := n.opt("on_load_side_effect").text(); effect != "" {
		key, value, _ := strings.Cut(strings.TrimPrefix(effect, "set_data:"), "=")
		l.effects = func() { observed[key] = value == "true" }
	}
	if raises := n.opt("on_load_raises"); !raises.null() {
		if raises.at("type").str() != "ConnectionError" {
			n.r.Fatalf("driver: unknown type of error")
		}
		l.fails = &ConnectionError{raises.at("message").str()}
	}
	return l
}

type loadOutcome struct {
	errs     []error
	seen     []bool
	observed map[string]any
	events   []module.Event
	took     time.Duration
}

func judgeLoad(c *kase, reg *registry.Registry, id string, o loadOutcome) {
	want := c.at("expected")
	_, visible := reg.Get(id)
	_, defined := reg.Definition(id)
	listed := slices.Contains(reg.List(registry.Filter{}), id)
	var failed []error
	for _, err := range o.errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	for _, key := range want.keys() {
		n := want.at(key)
		switch key {
		case "registration_succeeds", "both_succeed":
			if (len(failed) == 0) != n.flag() {
				c.Errorf("errors %v", failed)
			}
		case "one_succeeds":
			if (len(failed) == len(o.errs)-1) != n.flag() {
				c.Errorf("errors %v", o.errs)
			}
		case "post_register_visible":
			if visible != n.flag() || defined != n.flag() || listed != n.flag() {
				c.Errorf("visible %t, defined %t, listed %t", visible, defined, listed)
			}
		case "post_register_list_contains":
			equal(c, key, n.flag(), listed)
		case "post_register_get_returns":
			equal(c, key, n.null(), !visible)
		case "post_register_count":
			equal(c, key, n.number(), reg.Len())
		case "concurrent_check_visible":
			if slices.Contains(o.seen, true) != n.flag() || len(o.seen) == 0 {
				c.Errorf("seen while loading: %v", o.seen)
			}
		case "concurrent_check_get_returns":
			equal(c, key, n.null(), !slices.Contains(o.seen, true))
		case "on_load_observed_data":
			equal(c, key, n.fields(), o.observed)
		case "registration_raises":
			n.str()
			if reflect.TypeOf(o.errs[0]) != reflect.TypeFor[*ConnectionError]() {
				c.Errorf("error %T, want the very one of on_load", o.errs[0])
			}
		case "registration_error_message":
			equal(c, key, n.str(), o.errs[0].Error())
		case "raised_error_code":
			c.wantCode(failed[0], n.str())
		case "wall_clock_ms_less_than":
			if o.took >= milliseconds(n) {
				c.Errorf("took %v", o.took)
			}
		case "load_failed_event_emitted":
			if (len(o.events) == 1) != n.flag() {
				c.Errorf("events %v", o.events)
			}
		case "load_failed_event":
			judgeEvent(c, n, o.events)
		default:
			c.Fatalf("driver: unknown expectation %s", key)
		}
	}
}

func judgeEvent(c *kase, n *node, events []module.Event) {
	if len(events) != 1 {
		c.Fatalf("%d events", len(events))
	}
	e := events[0]
	equal(c, "event", n.at("event_type").str(), e.Type)
	for k, v := range n.at("data_contains").fields() {
		equal(c, k, v, e.Data[k])
	}
	for _, key := range n.at("data_required_keys").strs() {
		if _, ok := e.Data[key]; !ok {
			c.Errorf("the event has no %s", key)
		}
	}
}

func driveEphemeral(c *kase) {
	var events []module.Event
	reg := registry.New(registry.Options{Logger: quiet(), Events: func(e module.Event) { events = append(events, e) }})
	in, want := c.at("input"), c.at("expected")
	ids := make(map[string]bool)
	var err error
	for _, op := range in.at("operations").list() {
		ctx := c.t.Context()
		if n := op.opt("context"); !n.null() {
			ctx = inContext(ctx, n.at("caller_id").str(), identityOf("", n.at("identity").fields()))
		}
		switch kind := op.at("op").str(); kind {
		case "register":
			ids[op.at("module_id").str()] = true
			err = reg.RegisterDeclared(ctx, trivial(op.at("module_id").str()), registry.Declaration{})
		case "unregister":
			if !reg.Unregister(ctx, op.at("module_id").str()) {
				c.Errorf("there was nothing to unregister")
			}
		case "register_internal":
			ids[op.at("module_id").str()] = true
			err = reg.RegisterInternal(trivial(op.at("module_id").str()))
		case "discover":
			c.Fatalf("there is no discovery of files")
		default:
			c.Fatalf("driver: unknown operation %s", kind)
		}
	}
	c.wantCode(err, want.opt("error_code").text())
	events = slices.DeleteFunc(events, func(e module.Event) bool { return !ids[e.ModuleID] })
	wanted := want.at("events").list()
	if len(events) != len(wanted) {
		c.Fatalf("%d events, want %d: %v", len(events), len(wanted), events)
	}
	for i, n := range wanted {
		e := events[i]
		equal(c, "event", n.at("event_type").str(), e.Type)
		equal(c, "module", n.at("module_id").str(), e.ModuleID)
		for k, v := range n.opt("payload").fields() {
			got, there := e.Data[k]
			if diff := cmp.Diff(v, got); diff != "" || !there {
				c.Errorf("%s (-want +got):\n%s", k, diff)
			}
		}
		for _, key := range n.opt("payload_absent_keys").strs() {
			if _, there := e.Data[key]; there {
				c.Errorf("%s is there", key)
			}
		}
		if id := n.opt("identity_id").text(); id != "" {
			identity, _ := e.Data["identity"].(map[string]any)
			equal(c, "identity", any(id), identity["id"])
		}
	}
	if secret := want.opt("secret_absent").text(); secret != "" {
		text, err := json.Marshal(events)
		if err != nil || strings.Contains(string(text), secret) {
			c.Errorf("events show the secret: %s %v", text, err)
		}
	}
}
