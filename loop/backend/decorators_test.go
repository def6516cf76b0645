package backend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apbus/apbus/loop"
	"github.com/apbus/apbus/loop/backend"
)

// echo answers with the request.
func echo() loop.Backend {
	return loop.BackendFunc{Name: "m", Func: func(_ context.Context, r string) (string, error) { return r, nil }}
}

var errDown = errors.New("down")

func TestRecordAndReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tape bytes.Buffer
		n := 0
		live := loop.BackendFunc{Name: "m-1", Func: func(_ context.Context, r string) (string, error) {
			time.Sleep(time.Second)
			if n++; n == 2 {
				return "", errDown
			}
			return fmt.Sprint("answer ", n), nil
		}}
		rec := backend.NewRecorder(live, &tape, backend.RecorderOptions{Redact: func(s string) string { return strings.ReplaceAll(s, "ana", "***") }})
		requests := []string{`{"op":"discover","x":"ana"}`, `{"op":"ground"}`, `{"op":"enrich"}`}
		type answer struct {
			text   string
			failed bool
		}
		var want []answer
		for _, r := range requests {
			text, err := rec.Complete(t.Context(), r)
			want = append(want, answer{text, err != nil})
		}
		if strings.Contains(tape.String(), "ana") || !strings.Contains(tape.String(), `"dur_ms":1000`) {
			t.Errorf("tape:\n%s", tape.String())
		}

		p, err := backend.NewReplayer(bytes.NewReader(tape.Bytes()))
		if err != nil || p.Model() != "m-1" {
			t.Fatal(err)
		}
		for i, r := range requests {
			text, err := p.Complete(t.Context(), r)
			if got := (answer{text, err != nil}); got != want[i] {
				t.Errorf("replay %d: %+v, want %+v", i, got, want[i])
			}
		}
		_, err = p.Complete(t.Context(), requests[0])
		wantBackend(t, err) // the end
		p, _ = backend.NewReplayer(bytes.NewReader(tape.Bytes()))
		_, err = p.Complete(t.Context(), requests[1])
		wantBackend(t, err) // out of order
		if _, err = p.Complete(t.Context(), requests[0]); err != nil {
			t.Errorf("a miss used the recording up: %v", err)
		}
	})
	for _, tape := range []string{"", "x", "{}\n"} {
		_, err := backend.NewReplayer(strings.NewReader(tape))
		wantBackend(t, err)
	}
	_, err := backend.NewRecorder(echo(), brokenWriter{}, backend.RecorderOptions{}).Complete(t.Context(), `{"op":"ground"}`)
	wantBackend(t, err)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errDown }

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := loop.BackendFunc{Name: "m", Func: func(ctx context.Context, r string) (string, error) {
			select {
			case <-time.After(time.Minute):
				return r, nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}}
		for _, tt := range []struct {
			name   string
			l      backend.Limits
			size   int
			passes int // calls that go through before one is refused
		}{
			{"calls", backend.Limits{MaxCalls: 3}, 10, 3},
			{"size of a request", backend.Limits{MaxRequestBytes: 9}, 10, 0},
			{"all bytes", backend.Limits{MaxTotalBytes: 59}, 10, 2},
			{"time", backend.Limits{Wall: 150 * time.Second}, 10, 2},
			{"defaults", backend.Limits{Wall: time.Hour}, 10, 8},
		} {
			b := backend.NewBudget(slow, tt.l)
			for range 2 { // a new pass has a new budget
				b.BeginPass()
				n := 0
				for ; n < 20; n++ {
					if _, err := b.Complete(t.Context(), strings.Repeat("x", tt.size)); err != nil {
						break
					}
				}
				if n != tt.passes {
					t.Errorf("%s: %d calls, want %d", tt.name, n, tt.passes)
				}
			}
			if u := b.Usage(); u.Calls == 0 && tt.passes > 0 {
				t.Errorf("%s: usage %+v", tt.name, u)
			}
		}
	})
}

func TestPseudonymize(t *testing.T) {
	var sent string
	model := loop.BackendFunc{Name: "m", Func: func(_ context.Context, r string) (string, error) { sent = r; return r, nil }}
	p := backend.NewPseudonymize(model)
	hash := strings.Repeat("1234567890", 6) + "abcd"
	req := `{"evidence":[{"hash":"` + hash + `","id":"e1","text":"ana@example.org from 10.0.0.1 called +49 170 1234567, ana@example.org again"}],"instructions":"Write to x@y.zz","loop":1,"op":"discover"}`
	got, err := p.Complete(t.Context(), req)
	if err != nil || got != req {
		t.Errorf("came back as %s, %v", got, err)
	}
	first := sent
	for _, identity := range []string{"ana@example.org", "10.0.0.1", "1234567,"} {
		if strings.Contains(sent, identity) {
			t.Errorf("%s left: %s", identity, sent)
		}
	}
	// A module and its version look like a mail address, and must reach the model.
	if _, err := p.Complete(t.Context(), `{"text":"call demo.fail@1.0.0 of bob@shop.example"}`); err != nil || !strings.Contains(sent, "demo.fail@1.0.0 of __p1__") {
		t.Errorf("sent %s, %v", sent, err)
	}
	sent = first
	if !strings.Contains(sent, hash) || !strings.Contains(sent, "x@y.zz") || strings.Count(sent, "__p1__") != 2 {
		t.Errorf("sent %s", sent)
	}
	for _, bad := range []string{`{"text":"__p1__ ana@example.org"}`, `x`, `{} {}`} {
		_, err := p.Complete(t.Context(), bad)
		wantBackend(t, err)
	}
	liar := loop.BackendFunc{Func: func(context.Context, string) (string, error) { return `{"a":"__p7__"}`, nil }}
	_, err = backend.NewPseudonymize(liar).Complete(t.Context(), `{"text":"x"}`)
	wantBackend(t, err)
}

// The order of the design: what is recorded is what left the process.
func TestRecordingHoldsPseudonymsOnly(t *testing.T) {
	var tape bytes.Buffer
	b := backend.NewBudget(backend.NewPseudonymize(backend.NewRecorder(echo(), &tape, backend.RecorderOptions{})), backend.Limits{})
	req := `{"op":"ground","text":"ana@example.org"}`
	if got, err := b.Complete(t.Context(), req); err != nil || got != req {
		t.Fatal(got, err)
	}
	if strings.Contains(tape.String(), "ana") {
		t.Errorf("tape: %s", tape.String())
	}
	p, err := backend.NewReplayer(&tape)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := backend.NewPseudonymize(p).Complete(t.Context(), req); err != nil || got != req {
		t.Errorf("replay: %q, %v", got, err)
	}
}
