//go:build conformance

package conformance_test

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/executor"
	"github.com/apbus/apbus/module"
)

// tokens are the tokens that modules were given, by module.
type tokens struct {
	mu sync.Mutex
	m  map[string]*cancel.Token
}

func (t *tokens) keep(id string, tok *cancel.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[id] = tok
}

func pause(d time.Duration) { <-time.After(d) }

// driveTimeout runs with the grace that the variant names.
func driveTimeout(c *kase) {
	_, text, _ := strings.Cut(c.variant, "=")
	grace, err := time.ParseDuration(text)
	if err != nil {
		c.Fatalf("driver: %v", err)
	}
	c.bubble(func(ctx context.Context) {
		in, want := c.at("input"), c.at("expected")
		held := &tokens{m: map[string]*cancel.Token{}}
		cfg := executor.Config{GracePeriod: &grace}
		for _, key := range in.opt("config").maybeKeys() {
			if key != "executor" {
				c.Fatalf("driver: unknown config %s", key)
			}
			for _, setting := range in.at("config").at(key).keys() {
				if setting != "global_timeout" {
					c.Fatalf("driver: unknown config %s", setting)
				}
				cfg.GlobalTimeout = new(milliseconds(in.at("config").at(key).at(setting)))
			}
		}
		var modules []module.Module
		for _, id := range in.at("modules").keys() {
			modules = append(modules, timedModule(c, id, in.at("modules").at(id), held))
		}
		x := c.executorWith(cfg, nil, modules...)
		o := module.ContextOptions{}
		if in.at("application_token").flag() {
			o.CancelToken = cancel.NewToken()
		}
		if in.has("cancel_application_token_after_ms") {
			defer time.AfterFunc(milliseconds(in.at("cancel_application_token_after_ms")), func() {
				o.CancelToken.Cancel(cancel.Because(cancel.Caller, "", ""))
			}).Stop()
		}
		held.keep("application", o.CancelToken)
		began := time.Now()
		out, err := x.Call(module.WithContext(ctx, module.NewContext(o)), in.at("call").str(), nil)
		took := time.Since(began)
		if limit := milliseconds(want.at("returns_within_ms")); took > limit {
			c.Errorf("returned after %v, later than %v", took, limit)
		}
		if want.has("error_code") {
			c.wantCode(err, want.at("error_code").str())
		} else {
			c.wantCode(err, "")
			equal(c, "output", want.at("output").fields(), out)
		}
		for _, id := range want.at("token_cancelled").keys() {
			held.mu.Lock()
			tok := held.m[id]
			held.mu.Unlock()
			if got := tok != nil && tok.IsCancelled(); got != want.at("token_cancelled").at(id).flag() {
				c.Errorf("token of %s cancelled = %t", id, got)
			}
		}
		if err := x.Settle(ctx); err != nil {
			c.Errorf("settle: %v", err)
		}
	})
}

// maybeKeys are the keys of an object that may be absent.
func (n *node) maybeKeys() []string {
	if n.null() {
		return nil
	}
	return n.keys()
}

func milliseconds(n *node) time.Duration { return time.Duration(n.number()) * time.Millisecond }

func timedModule(c *kase, id string, n *node, held *tokens) module.Module {
	m := &mod{desc: module.Descriptor{ID: id}}
	m.desc.Timeout = new(milliseconds(n.at("module_timeout_ms")))
	switch kind := n.at("kind").str(); kind {
	case "sleeper":
		total, checks := milliseconds(n.at("sleep_ms")), n.at("checks_token").flag()
		m.execute = func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			tok := module.FromContext(ctx).Token()
			held.keep(id, tok)
			for left := total; left > 0; left -= 10 * time.Millisecond {
				pause(10 * time.Millisecond)
				if checks {
					if err := tok.Check(); err != nil {
						return nil, module.Errorf(module.CodeExecutionCancelled, "the sleeper was cancelled: %w", err)
					}
				}
			}
			return map[string]any{"slept": true}, nil
		}
	case "caller":
		callee, catches := n.at("calls").str(), n.at("catches").text()
		m.execute = func(ctx context.Context, _ map[string]any) (map[string]any, error) {
			held.keep(id, module.FromContext(ctx).Token())
			out, err := module.Call(ctx, callee, nil)
			if err != nil && catches != "" && string(module.CodeOf(err)) == catches {
				return map[string]any{"caught": catches}, nil
			}
			return out, err
		}
	default:
		c.Fatalf("driver: unknown kind %s", kind)
	}
	return m
}

// chunks streams what it was given.
type chunks struct {
	mod
	list []module.Chunk
}

func (s *chunks) Stream(context.Context, map[string]any) iter.Seq2[module.Chunk, error] {
	return func(yield func(module.Chunk, error) bool) {
		for _, c := range s.list {
			if !yield(c, nil) {
				return
			}
		}
	}
}

func driveStream(c *kase) {
	merge := module.NewMerge(executor.DefaultMaxMergeDepth)
	s := &chunks{mod: mod{desc: module.Descriptor{ID: "demo.stream", Annotations: module.Annotations{Streaming: true}}}}
	for _, n := range c.at("chunks").list() {
		chunk := n.fields()
		merge.Add(chunk)
		s.list = append(s.list, chunk)
	}
	want := c.at("expected").fields()
	if diff := cmp.Diff(want, merge.Value()); diff != "" {
		c.Errorf("merged (-want +got):\n%s", diff)
	}
	x := c.executor(nil, s)
	sent := 0
	reply, err := x.InvokeStream(c.t.Context(), &contextwire.Request{ModuleID: "demo.stream", Stream: true},
		func(got module.Chunk) error {
			if diff := cmp.Diff(s.list[sent], got); diff != "" {
				c.Errorf("chunk %d (-want +got):\n%s", sent, diff)
			}
			sent++
			return nil
		})
	if err != nil || sent != len(s.list) {
		c.Fatalf("%d chunks: %v", sent, err)
	}
	if want == nil {
		if len(reply.Output) != 0 {
			c.Errorf("output %v of no chunks", reply.Output)
		}
		return
	}
	equal(c, "output", want, reply.Output)
}
