package main

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/internal/natstest"
	"github.com/apbus/apbus/jetstream"
	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/looptest"
	"github.com/apbus/apbus/schema"
)

// A router finishes what another one, that died, left half done: when it starts, and
// soon after news of a decision. Nobody has to look.
func TestRouterMendsWhatAnotherLeft(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		s := natstest.New(t, natstest.Options{})
		defer s.Close()
		js, err := natsjs.New(s.Connect())
		if err != nil {
			t.Fatal(err)
		}
		quiet := slog.New(slog.DiscardHandler)
		store, err := jetstream.OpenLoop(t.Context(), jetstream.LoopOptions{JS: js, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		engine := func(s loop.Store) *loop.Engine {
			t.Helper()
			e, err := loop.New(loop.Options{Store: s, Reader: loop.NewMemReader(), Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		l := &learning{Engine: engine(store), store: store, log: quiet}
		cutOff := func(name string) string {
			t.Helper()
			hash := storedLesson(t, store, name)
			bob := loop.Actor{ID: "bob", Observer: loop.ObserverHuman, Scopes: []loop.Scope{loop.ScopeAdmin}}
			if _, err := l.Approve(t.Context(), time.Now(), bob, hash, "x"); err != nil {
				t.Fatal(err)
			}
			doomed := engine(looptest.NewFaulty(store, 2, false)) // with nothing but its intent
			if _, err := doomed.Apply(t.Context(), time.Now(), bob, hash, "x", loop.ApplyOptions{}); err == nil {
				t.Fatal("it did not die")
			}
			return hash
		}
		applied := func(hash string) bool {
			t.Helper()
			c, err := l.Case(t.Context(), hash)
			if err != nil {
				t.Fatal(err)
			}
			return c.Status.State == loop.StateApplied && c.Status.Intent == ""
		}

		first := cutOff("first")
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		wg.Go(func() { l.mend(ctx) })
		time.Sleep(time.Second)
		synctest.Wait()
		if !applied(first) {
			t.Error("a router that has started left it half done")
		}
		second := cutOff("second")
		time.Sleep(2 * mendAfter)
		synctest.Wait()
		if !applied(second) {
			t.Error("a router that was told of it left it half done")
		}
	})
}

// storedLesson stores a pending recommendation of a lesson.
func storedLesson(t *testing.T, s loop.Store, text string) string {
	t.Helper()
	r := &loop.Recommendation{
		V: 1, Analyzer: "exec.module_failure/1", Params: map[string]any{}, Origin: loop.Origin{Kind: loop.OriginBuiltin},
		Target: "entity:lessons/math.add", Action: loop.ActionClusterFailure, Kind: loop.KindLesson, DedupKey: text,
		Summary: loop.Text{TemplateID: "loop.llm.advisory", Args: map[string]any{"text": text}}, Severity: loop.SeverityLow,
		Proposal: loop.Change{Kind: loop.ChangeOps, Ops: []loop.Op{{
			Op: loop.OpAdd, Type: loop.ItemFact, Namespace: "default", Name: "math.add",
			Fields: map[string]any{"relation": loop.RelationLesson, "object": text, "confidence": 0.9},
		}}},
		Rollbackable: true, Evidence: []string{schema.ContentHash(text)}, CreatedAtMS: time.Now().UnixMilli(), Scope: []string{},
		Creator: "engine:exec.module_failure/1",
	}
	body, hash, err := r.Encode()
	if err == nil {
		_, err = s.Put(t.Context(), loop.BucketRecs, hash, body, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return hash
}
