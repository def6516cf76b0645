package middleware_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/executor/middleware"
	"github.com/apbus/apbus/module"
)

func TestMemoryStorage(t *testing.T) {
	s, ctx := middleware.NewMemoryStorage(), t.Context()
	value := obj{"n": 1, "list": []any{obj{"x": "y"}}}
	if err := s.Save(ctx, "errors", "k.1", value); err != nil {
		t.Fatal(err)
	}
	want := obj{"n": int64(1), "list": []any{obj{"x": "y"}}}
	value["list"].([]any)[0].(obj)["x"] = "changed outside"
	got, err := s.Get(ctx, "errors", "k.1")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got["n"] = "changed outside"
	if got, _ := s.Get(ctx, "errors", "k.1"); got["n"] != int64(1) {
		t.Error("a reader changed the stored value")
	}
	for _, tt := range []struct{ namespace, key string }{{"metrics", "k.1"}, {"errors", "k"}, {"none", "none"}} {
		if got, err := s.Get(ctx, tt.namespace, tt.key); got != nil || err != nil {
			t.Errorf("%v: %v, %v", tt, got, err)
		}
	}
	for range 2 {
		if err := s.Delete(ctx, "errors", "k.1"); err != nil {
			t.Error(err)
		}
	}
	if got, _ := s.Get(ctx, "errors", "k.1"); got != nil {
		t.Error("deleted and still there")
	}
	for name, err := range map[string]error{
		"no namespace": s.Save(ctx, "", "k", obj{}), "no key": s.Save(ctx, "n", "", obj{}), "no value": s.Save(ctx, "n", "k", nil),
		"no json": s.Save(ctx, "n", "k", obj{"c": make(chan int)}),
	} {
		wantInvalid(t, name, err, module.CodeInvalidInput)
	}
}

func TestMemoryStorageList(t *testing.T) {
	s, ctx := middleware.NewMemoryStorage(), t.Context()
	for _, k := range []string{"calls_total", "errors_total", "calls", "other"} {
		if err := s.Save(ctx, middleware.StorageMetrics, k, obj{"k": k}); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string][]string{"calls": {"calls", "calls_total"}, "": {"calls", "calls_total", "errors_total", "other"}, "x": nil} {
		entries, err := s.List(ctx, middleware.StorageMetrics, prefix)
		var got []string
		for _, e := range entries {
			if got = append(got, e.Key); e.Value["k"] != e.Key {
				t.Errorf("%s has %v", e.Key, e.Value)
			}
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", prefix, err, diff)
		}
	}
	if entries, _ := s.List(ctx, middleware.StorageUsage, ""); entries != nil {
		t.Errorf("another namespace shows %v", entries)
	}
}

// The storage agrees with a plain map.
func TestMemoryStorageModel(t *testing.T) {
	ctx := t.Context()
	rapid.Check(t, func(r *rapid.T) {
		s, model := middleware.NewMemoryStorage(), map[[2]string]string{}
		name := rapid.SampledFrom([]string{"a", "b"})
		r.Repeat(map[string]func(*rapid.T){
			"save": func(r *rapid.T) {
				ns, k, v := name.Draw(r, "ns"), name.Draw(r, "key"), name.Draw(r, "value")
				if err := s.Save(ctx, ns, k, obj{"v": v}); err != nil {
					r.Fatal(err)
				}
				model[[2]string{ns, k}] = v
			},
			"delete": func(r *rapid.T) {
				ns, k := name.Draw(r, "ns"), name.Draw(r, "key")
				if err := s.Delete(ctx, ns, k); err != nil {
					r.Fatal(err)
				}
				delete(model, [2]string{ns, k})
			},
			"": func(r *rapid.T) {
				for _, ns := range []string{"a", "b"} {
					entries, err := s.List(ctx, ns, "")
					if err != nil {
						r.Fatal(err)
					}
					want := 0
					for k := range model {
						if k[0] == ns {
							want++
						}
					}
					if len(entries) != want {
						r.Fatalf("%s lists %d, want %d", ns, len(entries), want)
					}
					for _, e := range entries {
						if e.Value["v"] != model[[2]string{ns, e.Key}] {
							r.Fatalf("%s/%s is %v", ns, e.Key, e.Value)
						}
					}
				}
			},
		})
	})
}
