package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

// happened is a store of evidence made of closures.
type happened struct {
	list   func(contextwire.EvidenceQuery) (contextwire.EvidencePage, error)
	follow func(ctx context.Context, after uint64) iter.Seq2[contextwire.EvidenceItem, error]
}

func (h happened) Evidence(_ context.Context, q contextwire.EvidenceQuery) (contextwire.EvidencePage, error) {
	return h.list(q)
}

func (h happened) Follow(ctx context.Context, _ contextwire.EvidenceQuery, after uint64) iter.Seq2[contextwire.EvidenceItem, error] {
	return h.follow(ctx, after)
}

func withHappened(h happened) func(*gateway.Options) {
	return func(o *gateway.Options) { o.Evidence = h }
}

func failure(seq uint64) contextwire.EvidenceItem {
	return contextwire.EvidenceItem{Seq: seq, Hash: strings.Repeat("a", 64), Evidence: &contextwire.Evidence{
		Type: contextwire.EvidenceCall, At: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), ModuleID: "pay.charge",
		Outcome: contextwire.OutcomeError, Code: "PAY_NO", Message: "declined", Inputs: map[string]any{"card": "***REDACTED***"},
		Duration: 1500 * time.Microsecond,
	}}
}

func TestEvidenceList(t *testing.T) {
	var asked contextwire.EvidenceQuery
	g := newGateway(t, withHappened(happened{list: func(q contextwire.EvidenceQuery) (contextwire.EvidencePage, error) {
		asked = q
		return contextwire.EvidencePage{Items: []contextwire.EvidenceItem{failure(7)}, Last: 9, More: true}, nil
	}}))
	res := record(g, "GET", "/v1/evidence?module=pay.charge&type=call,stream&code=PAY_NO&since=2026-05-01T00:00:00Z&before=8&limit=5", "")
	if res.status != 200 {
		t.Fatalf("got %d %s", res.status, res.body)
	}
	golden(t, "evidence", res.body)
	want := contextwire.EvidenceQuery{
		ModuleID: "pay.charge", Types: []contextwire.EvidenceType{"call", "stream"}, Code: "PAY_NO",
		Since: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), Before: 8, Limit: 5,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("query (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"type=bogus", "limit=0", "limit=1001", "limit=x", "since=yesterday", "since=-2h", "before=x", "module=A..b", "follow=yes"} {
		record(g, "GET", "/v1/evidence?"+bad, "").wantFault(t, 400, module.CodeInvalidInput)
	}
	record(newGateway(t), "GET", "/v1/evidence", "").wantFault(t, 501, module.CodeNotImplemented)
	record(newGateway(t), "GET", "/v1/evidence?follow=1", "").wantFault(t, 501, module.CodeNotImplemented)
}

// A follower gets what comes as events, resumes where it was, and does not hold up
// the end of the server.
func TestEvidenceFollow(t *testing.T) {
	from := make(chan uint64, 2)
	url := serve(t, withHappened(happened{
		list: func(contextwire.EvidenceQuery) (contextwire.EvidencePage, error) {
			return contextwire.EvidencePage{Last: 40}, nil
		},
		follow: func(ctx context.Context, after uint64) iter.Seq2[contextwire.EvidenceItem, error] {
			return func(yield func(contextwire.EvidenceItem, error) bool) {
				from <- after
				if yield(failure(after+1), nil) && yield(failure(after+2), nil) {
					<-ctx.Done()
				}
			}
		},
	}))
	for _, tt := range []struct{ last, want string }{{"", "41"}, {"7", "8"}} {
		ctx, stop := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("no events came"))
		req, err := http.NewRequestWithContext(ctx, "GET", url+"/v1/evidence", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/event-stream")
		if tt.last != "" {
			req.Header.Set("Last-Event-ID", tt.last)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		var got []string
		for len(got) < 3 && lines.Scan() {
			got = append(got, lines.Text())
		}
		stop()
		_ = res.Body.Close()
		if len(got) != 3 || got[0] != "event: evidence" || got[1] != "id: "+tt.want {
			t.Fatalf("events %q", got)
		}
		var body map[string]any
		if err := json.Unmarshal([]byte(strings.TrimPrefix(got[2], "data: ")), &body); err != nil || body["module_id"] != "pay.charge" {
			t.Errorf("data %s: %v", got[2], err)
		}
		<-from
	}
}

func TestEvidenceFollowersLeaveWhenTheServerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := gateway.New(options(withHappened(happened{
			list: func(contextwire.EvidenceQuery) (contextwire.EvidencePage, error) {
				return contextwire.EvidencePage{}, nil
			},
			follow: func(ctx context.Context, _ uint64) iter.Seq2[contextwire.EvidenceItem, error] {
				return func(func(contextwire.EvidenceItem, error) bool) { <-ctx.Done() }
			},
		})))
		if err != nil {
			t.Fatal(err)
		}
		srv := g.Server()
		done := make(chan response, 1)
		go func() { done <- record(g, "GET", "/v1/evidence?follow=1", "") }()
		synctest.Wait()
		select {
		case res := <-done:
			t.Fatalf("ended at once: %+v", res)
		default:
		}
		if err := srv.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-done // or the bubble says that nothing moves
		over, stop := context.WithCancel(context.Background())
		stop()
		g.Close(over)
	})
}
