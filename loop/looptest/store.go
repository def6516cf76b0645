// Package looptest helps to test implementations of the seams of package loop: the
// contract of a Store as a suite, and a Store that fails on command. It does not
// test the loop itself.
package looptest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apbus/apbus/loop"
)

// TestStore checks that the store which open makes keeps the contract of
// [loop.Store]. open is called once a subtest and gives an empty store.
func TestStore(t *testing.T, open func(t *testing.T) loop.Store) {
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, s loop.Store)
	}{
		{"a key that is not there", absent},
		{"put is a compare-and-set", compareAndSet},
		{"list gives the newest values", list},
		{"buckets are apart", buckets},
		{"logs keep order and refuse what is late", logs},
		{"values are copied", copies},
		{"keys and sizes are bounded", bounds},
		{"a lock is held by one", locks},
		{"racing writers: one wins each revision", races},
		{"racing appenders: nothing is lost or doubled", appendRaces},
		{"a cancelled context", cancelled},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, open(t)) })
	}
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func absent(t *testing.T, s loop.Store) {
	e := must(s.Get(t.Context(), loop.BucketState, "a"))(t)
	if e.Rev != 0 || len(e.Value) != 0 {
		t.Errorf("got %+v, want nothing at revision 0", e)
	}
	for e, err := range s.List(t.Context(), loop.BucketState) {
		t.Errorf("an empty bucket lists %+v, %v", e, err)
	}
	for e, err := range s.Log(t.Context(), "a") {
		t.Errorf("an empty log has %+v, %v", e, err)
	}
	for e, err := range s.Log(t.Context(), "") {
		t.Errorf("there is a log with %+v, %v", e, err)
	}
}

func compareAndSet(t *testing.T, s loop.Store) {
	ctx := t.Context()
	if _, err := s.Put(ctx, loop.BucketState, "a", []byte("x"), 7); !errors.Is(err, loop.ErrConflict) {
		t.Errorf("put over a revision that never was: %v, want a conflict", err)
	}
	first := must(s.Put(ctx, loop.BucketState, "a", []byte("1"), 0))(t)
	if first == 0 {
		t.Error("the first revision is 0")
	}
	if _, err := s.Put(ctx, loop.BucketState, "a", []byte("x"), 0); !errors.Is(err, loop.ErrConflict) {
		t.Errorf("second create: %v, want a conflict", err)
	}
	second := must(s.Put(ctx, loop.BucketState, "a", []byte("2"), first))(t)
	if second <= first {
		t.Errorf("revision %d after %d", second, first)
	}
	if _, err := s.Put(ctx, loop.BucketState, "a", []byte("x"), first); !errors.Is(err, loop.ErrConflict) {
		t.Errorf("put over an old revision: %v, want a conflict", err)
	}
	e := must(s.Get(ctx, loop.BucketState, "a"))(t)
	if string(e.Value) != "2" || e.Rev != second || e.Key != "a" {
		t.Errorf("got %+v", e)
	}
}

func list(t *testing.T, s loop.Store) {
	ctx := t.Context()
	want := map[string]string{}
	for i := range 50 {
		key := fmt.Sprintf("k.%d", i)
		rev := must(s.Put(ctx, loop.BucketRecs, key, []byte("old"), 0))(t)
		want[key] = fmt.Sprint("new ", i)
		must(s.Put(ctx, loop.BucketRecs, key, []byte(want[key]), rev))(t)
	}
	got := map[string]string{}
	for e, err := range s.List(ctx, loop.BucketRecs) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[e.Key]; twice {
			t.Errorf("%s is listed twice", e.Key)
		}
		got[e.Key] = string(e.Value)
	}
	if len(got) != len(want) {
		t.Errorf("%d keys, want %d", len(got), len(want))
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %q, want %q", k, got[k], v)
		}
	}
	n := 0
	for _, err := range s.List(ctx, loop.BucketRecs) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n == 3 {
			break
		}
	}
}

func buckets(t *testing.T, s loop.Store) {
	ctx := t.Context()
	for _, b := range []loop.Bucket{loop.BucketRecs, loop.BucketState, loop.BucketKnowledge} {
		must(s.Put(ctx, b, "same", []byte(b), 0))(t)
	}
	for _, b := range []loop.Bucket{loop.BucketRecs, loop.BucketState, loop.BucketKnowledge} {
		if e := must(s.Get(ctx, b, "same"))(t); string(e.Value) != string(b) {
			t.Errorf("bucket %s holds %q", b, e.Value)
		}
	}
}

func logs(t *testing.T, s loop.Store) {
	ctx := t.Context()
	last := map[string]uint64{}
	for i := range 20 {
		log := fmt.Sprint("log", i%2)
		seq := must(s.Append(ctx, log, fmt.Append(nil, log, " ", i), last[log]))(t)
		if seq <= last[log] {
			t.Errorf("sequence %d after %d", seq, last[log])
		}
		if _, err := s.Append(ctx, log, []byte("late"), last[log]); !errors.Is(err, loop.ErrConflict) {
			t.Errorf("late append: %v, want a conflict", err)
		}
		last[log] = seq
	}
	if _, err := s.Append(ctx, "log2", []byte("x"), last["log1"]); !errors.Is(err, loop.ErrConflict) {
		t.Errorf("append to an empty log after something: %v, want a conflict", err)
	}
	read := func(log string) map[string][]string {
		got := map[string][]string{}
		seqs := map[string]uint64{}
		for e, err := range s.Log(ctx, log) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Rev <= seqs[e.Key] {
				t.Errorf("%s: sequence %d after %d", e.Key, e.Rev, seqs[e.Key])
			}
			seqs[e.Key] = e.Rev
			got[e.Key] = append(got[e.Key], string(e.Value))
		}
		return got
	}
	one, all := read("log1"), read("")
	if len(one) != 1 || len(one["log1"]) != 10 || one["log1"][9] != "log1 19" {
		t.Errorf("log1 is %v", one)
	}
	if len(all) != 2 || len(all["log0"]) != 10 || len(all["log1"]) != 10 || all["log0"][0] != "log0 0" {
		t.Errorf("all logs are %v", all)
	}
}

func copies(t *testing.T, s loop.Store) {
	ctx := t.Context()
	v := []byte("abc")
	must(s.Put(ctx, loop.BucketState, "a", v, 0))(t)
	entry := []byte("abc")
	must(s.Append(ctx, "l", entry, 0))(t)
	v[0], entry[0] = 'X', 'X'
	e := must(s.Get(ctx, loop.BucketState, "a"))(t)
	if string(e.Value) != "abc" {
		t.Errorf("a change of the caller's slice shows: %q", e.Value)
	}
	e.Value[0] = 'Y'
	if again := must(s.Get(ctx, loop.BucketState, "a"))(t); string(again.Value) != "abc" {
		t.Errorf("a change of what was read shows: %q", again.Value)
	}
	for e, err := range s.Log(ctx, "l") {
		if err != nil || string(e.Value) != "abc" {
			t.Errorf("log: %q, %v", e.Value, err)
		}
	}
}

func bounds(t *testing.T, s loop.Store) {
	ctx := t.Context()
	for _, key := range []string{"", "a b", "a/b", "a*", "a>", "ä", strings.Repeat("k", 129)} {
		if _, err := s.Put(ctx, loop.BucketState, key, []byte("x"), 0); err == nil || errors.Is(err, loop.ErrConflict) {
			t.Errorf("key %q: %v, want a refusal", key, err)
		}
		if key == "" {
			continue
		}
		if _, err := s.Append(ctx, key, []byte("x"), 0); err == nil || errors.Is(err, loop.ErrConflict) {
			t.Errorf("log %q: %v, want a refusal", key, err)
		}
	}
	key := strings.Repeat("k", 128)
	large := bytes.Repeat([]byte("v"), loop.MaxStoreValue)
	must(s.Put(ctx, loop.BucketState, key, large, 0))(t)
	if e := must(s.Get(ctx, loop.BucketState, key))(t); !bytes.Equal(e.Value, large) {
		t.Error("the largest value came back changed")
	}
	if _, err := s.Put(ctx, loop.BucketState, "b", append(large, 'v'), 0); err == nil {
		t.Error("a value over the limit was taken")
	}
}

func locks(t *testing.T, s loop.Store) {
	ctx := t.Context()
	unlock := must(s.Lock(ctx, "run", time.Hour))(t)
	if _, err := s.Lock(ctx, "run", time.Hour); !errors.Is(err, loop.ErrLocked) {
		t.Errorf("second lock: %v, want ErrLocked", err)
	}
	other := must(s.Lock(ctx, "other", time.Hour))(t)
	if err := unlock(ctx); err != nil {
		t.Error(err)
	}
	again := must(s.Lock(ctx, "run", time.Hour))(t)
	if err := unlock(ctx); err != nil { // of one that was given back: nothing
		t.Error(err)
	}
	if _, err := s.Lock(ctx, "run", time.Hour); !errors.Is(err, loop.ErrLocked) {
		t.Errorf("a lock was given back by who held it before: %v", err)
	}
	for _, u := range []func(context.Context) error{again, other} {
		if err := u(ctx); err != nil {
			t.Error(err)
		}
	}
}

func races(t *testing.T, s loop.Store) {
	const writers, each = 8, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				e, err := s.Get(t.Context(), loop.BucketKnowledge, "n")
				if err != nil {
					t.Error(err)
					return
				}
				_, err = s.Put(t.Context(), loop.BucketKnowledge, "n", append(e.Value, 'x'), e.Rev)
				switch {
				case err == nil:
					done++
				case !errors.Is(err, loop.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if e := must(s.Get(t.Context(), loop.BucketKnowledge, "n"))(t); len(e.Value) != writers*each {
		t.Errorf("%d writes arrived, want %d", len(e.Value), writers*each)
	}
}

func appendRaces(t *testing.T, s loop.Store) {
	const writers = 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range writers {
		wg.Go(func() {
			_, err := s.Append(t.Context(), "race", []byte("x"), 0)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
			case !errors.Is(err, loop.ErrConflict):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, err := range s.Log(t.Context(), "race") {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if won != 1 || n != 1 {
		t.Errorf("%d writers won and the log has %d entries, want one each", won, n)
	}
}

func cancelled(t *testing.T, s loop.Store) {
	must(s.Put(t.Context(), loop.BucketState, "a", []byte("x"), 0))(t)
	cause := errors.New("gone")
	ctx, stop := context.WithCancelCause(t.Context())
	stop(cause)
	if _, err := s.Get(ctx, loop.BucketState, "a"); err == nil {
		t.Error("get succeeded")
	}
	for _, err := range s.List(ctx, loop.BucketState) {
		if err == nil {
			t.Error("list goes on")
		}
	}
}
