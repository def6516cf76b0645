package contextwire_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden vectors")

var codecs = []contextwire.ContentType{contextwire.JSON, contextwire.MsgPack}

// vector is one message: how it is written and what reading it gives.
type vector struct {
	name   string
	about  string
	encode func(contextwire.ContentType) (contextwire.Header, []byte, error)
	decode func(contextwire.ContentType, contextwire.Header, []byte) (any, error)
	want   any
	// jsonOnly marks messages that exist in JSON only.
	jsonOnly bool
}

const (
	callID  = "8vJ2mQ0aTn6yXk41LwZbCg"
	rootID  = "rootrootrootrootrootro"
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
)

var at = time.Date(2026, 11, 30, 12, 0, 0, 250_000_000, time.UTC)

// TestGolden fixes the bytes of every kind of message. Bodies are compared with
// sorted keys, since their order is free on the wire.
func TestGolden(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range vectors() {
		path := filepath.Join("testdata", "golden", v.name+".txt")
		seen[path] = true
		t.Run(v.name, func(t *testing.T) {
			got := render(t, v)
			if *update {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("bytes differ from the vector (-want +got):\n%s", diff)
			}
			g := parseGolden(t, want)
			for _, ct := range codecs {
				if v.jsonOnly && ct != contextwire.JSON {
					continue
				}
				value, err := v.decode(ct, g.headers[ct], g.bodies[ct])
				if err != nil {
					t.Fatalf("%s: %v", ct, err)
				}
				if diff := cmp.Diff(plain(v.want), plain(value)); diff != "" {
					t.Errorf("%s: decoded (-want +got):\n%s", ct, diff)
				}
			}
		})
	}
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f] {
			t.Errorf("%s belongs to no vector", f)
		}
	}
}

// plain turns what has private parts into something that cmp can compare.
func plain(v any) any {
	switch x := v.(type) {
	case *contextwire.Request:
		c := *x
		c.Context = nil
		return []any{c, plain(x.Context)}
	case *contextwire.Frame:
		c := *x
		c.Err = nil
		return []any{c, plain(x.Err)}
	case *module.Context:
		if x == nil {
			return nil
		}
		return contextwire.ContextMap(x)
	case *module.Error:
		if x == nil {
			return nil
		}
		return []any{x.Map(), x.Remote, x.Unexecuted}
	case *module.PreflightResult:
		return x.Map()
	}
	return v
}

func render(t *testing.T, v vector) []byte {
	t.Helper()
	var out bytes.Buffer
	fmt.Fprintf(&out, "# %s\n", v.about)
	for _, ct := range codecs {
		if v.jsonOnly && ct != contextwire.JSON {
			continue
		}
		h, body, err := v.encode(ct)
		if err != nil {
			t.Fatalf("encode %s: %v", ct, err)
		}
		_, short, _ := strings.Cut(string(ct), "/")
		fmt.Fprintf(&out, "-- %s headers --\n", short)
		for _, k := range slices.Sorted(maps.Keys(h)) {
			for _, value := range h[k] {
				fmt.Fprintf(&out, "%s: %s\n", k, value)
			}
		}
		fmt.Fprintf(&out, "-- %s body --\n", short)
		if len(body) == 0 {
			continue
		}
		value, err := contextwire.Decode(ct, body, contextwire.Limits{})
		if err != nil {
			t.Fatalf("decode %s: %v", ct, err)
		}
		sorted, err := contextwire.EncodeCanonical(ct, value)
		if err != nil {
			t.Fatal(err)
		}
		if len(sorted) != len(body) {
			t.Errorf("%s: body of %d bytes has %d with sorted keys", ct, len(body), len(sorted))
		}
		if ct == contextwire.JSON {
			fmt.Fprintf(&out, "%s\n", sorted)
			continue
		}
		for chunk := range slices.Chunk(sorted, 32) {
			fmt.Fprintf(&out, "%x\n", chunk)
		}
	}
	return out.Bytes()
}

type golden struct {
	headers map[contextwire.ContentType]contextwire.Header
	bodies  map[contextwire.ContentType][]byte
}

func parseGolden(t testing.TB, text []byte) golden {
	t.Helper()
	g := golden{map[contextwire.ContentType]contextwire.Header{}, map[contextwire.ContentType][]byte{}}
	var ct contextwire.ContentType
	var inBody bool
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "# "):
		case strings.HasPrefix(line, "-- "):
			short, part, _ := strings.Cut(strings.Trim(line, "- "), " ")
			ct, inBody = contextwire.ContentType("application/"+short), part == "body"
			if g.headers[ct] == nil {
				g.headers[ct] = contextwire.Header{}
			}
		case !inBody:
			k, value, ok := strings.Cut(line, ": ")
			if !ok {
				t.Fatalf("bad header line %q", line)
			}
			g.headers[ct][k] = append(g.headers[ct][k], value)
		case ct == contextwire.JSON:
			g.bodies[ct] = append(g.bodies[ct], line...)
		default:
			raw, err := hex.DecodeString(line)
			if err != nil {
				t.Fatal(err)
			}
			g.bodies[ct] = append(g.bodies[ct], raw...)
		}
	}
	return g
}

// goldens reads all vectors, as seeds for fuzzing and for the truncation test.
func goldens(t testing.TB) map[string]golden {
	t.Helper()
	files, err := filepath.Glob("testdata/golden/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden vectors: %v", err)
	}
	out := map[string]golden{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".txt")] = parseGolden(t, text)
	}
	return out
}

func vectors() []vector {
	return slices.Concat(valueVectors(), requestVectors(), frameVectors(), replyVectors(), controlVectors())
}

func valueVectors() []vector {
	value := map[string]any{
		"null": nil, "true": true, "false": false, "text": "é ☃ 𝄞 \"\\/\b\f\n\r\t\x01\u007f<&>\u2028", "empty": "",
		"ints": []any{
			int64(0), int64(1), int64(-1), int64(127), int64(128), int64(255), int64(256), int64(65535), int64(65536),
			int64(math.MaxUint32), int64(math.MaxUint32) + 1, int64(-32), int64(-33), int64(-128), int64(-129),
			int64(math.MinInt16), int64(math.MinInt16) - 1, int64(math.MinInt32), int64(math.MinInt32) - 1,
			int64(math.MaxInt64), int64(math.MinInt64), uint64(math.MaxInt64) + 1, uint64(math.MaxUint64),
			int64(9007199254740993),
		},
		"floats": []any{0.0, math.Copysign(0, -1), 1.0, -1.5, 0.1, 1e-7, 1e21, 1e20, math.MaxFloat64, math.SmallestNonzeroFloat64},
		"list":   []any{}, "map": map[string]any{}, "nested": []any{map[string]any{"a": []any{nil}}},
		"": "empty key", "long": strings.Repeat("x", 40), "longer": strings.Repeat("y", 300),
	}
	return []vector{{
		name: "value", about: "every kind of value; floats are written as floats, integers keep 64 bits",
		encode: func(ct contextwire.ContentType) (contextwire.Header, []byte, error) {
			body, err := contextwire.Encode(ct, value)
			return nil, body, err
		},
		decode: func(ct contextwire.ContentType, _ contextwire.Header, body []byte) (any, error) {
			return contextwire.Decode(ct, body, contextwire.Limits{})
		},
		want: value,
	}, {
		name: "context", about: "a Context as it is stored, with both redacted copies",
		encode: func(ct contextwire.ContentType) (contextwire.Header, []byte, error) {
			body, err := contextwire.EncodeContext(fullContext(), ct)
			return nil, body, err
		},
		decode: func(ct contextwire.ContentType, _ contextwire.Header, body []byte) (any, error) {
			return contextwire.DecodeContext(body, ct, contextwire.Limits{})
		},
		want: fullContext(),
	}}
}

func fullContext() *module.Context {
	w := plainContext().Wire()
	w.RedactedInputs = map[string]any{"card": "***REDACTED***", "qty": int64(2)}
	w.RedactedOutput = map[string]any{"ok": true}
	return module.RestoreContext(w)
}

func plainContext() *module.Context {
	return module.RestoreContext(module.ContextWire{
		TraceID: traceID, CallerID: "near.chain", CallChain: []string{"near.chain", "orders.place"},
		Identity: module.NewIdentity("ana", "user", []string{"ops"}, map[string]any{"team": "pay", "level": int64(3)}),
		Data:     map[string]any{"tenant": "acme", "x-deadline": 1.7e9},
	})
}

func requestVectors() []vector {
	span := &module.TraceParent{Version: "00", TraceID: traceID, ParentID: spanID, Flags: "01", State: []module.TraceState{{Key: "vendor", Value: "a:1"}, {Key: "b", Value: "2"}}}
	noState := &module.TraceParent{Version: "00", TraceID: traceID, ParentID: spanID, Flags: "01"}
	anonymous := func() *module.Context {
		return module.RestoreContext(module.ContextWire{TraceID: traceID})
	}
	return []vector{
		requestVector("request", "a nested unary call with everything that a unary request may carry", contextwire.Request{
			CallID: callID, Attempt: 2, Root: rootID, Parent: "parentparentparentpare", ModuleID: "payments.charge",
			Budget: 1500 * time.Millisecond, Version: "^2.1", Trace: true, IdempotencyKey: "order-17",
			Context: plainContext(), Inputs: map[string]any{"amount_cents": int64(1999), "card": "4111", "rate": 1.0},
			TraceParent: span,
		}),
		requestVector("request-minimal", "a top-level call without identity, inputs or budget", contextwire.Request{
			CallID: callID, Attempt: 1, ModuleID: "demo.whoami", Context: anonymous(), Inputs: map[string]any{}, TraceParent: noState,
		}),
		requestVector("request-stream", "a stream with a window of its own", contextwire.Request{
			CallID: callID, Attempt: 1, ModuleID: "text.words", Stream: true, Credit: contextwire.Credit{Frames: 4, Bytes: 4096},
			Budget: time.Minute, Context: anonymous(), Inputs: map[string]any{"text": "to be"}, TraceParent: noState,
		}),
		bareVector("request-bare", "a bare request: inputs and, here, a trace", map[string]any{"a": int64(1), "b": int64(2)}, noState),
	}
}

func requestVector(name, about string, r contextwire.Request) vector {
	want := r
	if want.Credit == (contextwire.Credit{}) {
		want.Credit = contextwire.DefaultCredit()
	}
	return vector{
		name: name, about: about,
		encode: func(ct contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.EncodeRequest(&r, ct)
		},
		decode: func(ct contextwire.ContentType, h contextwire.Header, body []byte) (any, error) {
			got, err := decodeRequest(r.ModuleID, h, body)
			if got != nil && (got.ContentType != ct || got.Accept != ct) {
				return nil, fmt.Errorf("content type %s, accept %s", got.ContentType, got.Accept)
			}
			if got != nil {
				got.ContentType, got.Accept = "", ""
			}
			return got, err
		},
		want: &want,
	}
}

func bareVector(name, about string, inputs map[string]any, tp *module.TraceParent) vector {
	r := contextwire.Request{Bare: true, ModuleID: "math.add", Inputs: inputs, TraceParent: tp}
	want := contextwire.Request{
		Bare: true, ModuleID: "math.add", Inputs: inputs, TraceParent: tp, Attempt: 1, CallID: "fresh",
		Credit: contextwire.DefaultCredit(), ContentType: contextwire.JSON, Accept: contextwire.JSON,
		Context: module.RestoreContext(module.ContextWire{TraceID: traceID}),
	}
	return vector{
		name: name, about: about, jsonOnly: true,
		encode: func(contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.EncodeRequest(&r, contextwire.JSON)
		},
		decode: func(_ contextwire.ContentType, h contextwire.Header, body []byte) (any, error) {
			got, err := decodeRequest("math.add", h, body)
			if got != nil && contextwire.ValidCallID(got.CallID) {
				got.CallID = "fresh"
			}
			return got, err
		},
		want: &want,
	}
}

func decodeRequest(id string, h contextwire.Header, body []byte) (*contextwire.Request, error) {
	head, err := contextwire.ParseHead(id, h, contextwire.Limits{})
	if err != nil {
		return nil, err
	}
	return head.DecodeBody(body, contextwire.Limits{})
}

func frameVectors() []vector {
	failure := module.Errorf(module.CodeSchemaValidation, "input does not match the schema: naïve\nsecond line").
		WithDetails(map[string]any{"errors": []any{map[string]any{"path": "/a", "rule": "type"}}}).WithCauseText("1 error")
	failure.Timestamp, failure.TraceID, failure.ModuleID = at, traceID, "math.add"
	failure.AIGuidance, failure.Suggestion = "send numbers", "check a"
	busy := module.Errorf(module.CodeBusOverloaded, "node is full").NotExecuted()
	busy.Timestamp = at
	refused := module.Errorf(module.CodeACLDenied, "denied")
	refused.Timestamp = at
	preflight := &module.PreflightResult{
		Valid: false, RequiresApproval: true,
		Checks: []module.PreflightCheck{{Check: "module_id", Passed: true, Warnings: []string{"old"}}, {Check: "acl", Error: refused}},
		PredictedChanges: []module.Change{{
			Action: "charge", Target: "card", Summary: "Charge 19.99", Before: module.Known(nil), After: module.Known(int64(1999)),
			Extra: map[string]any{"x-currency": "EUR"},
		}},
	}
	node := func(f contextwire.Frame) contextwire.Frame {
		f.CallID, f.Node, f.Boot = callID, "n1", "b00tB00t"
		return f
	}
	control := func(f contextwire.Frame) contextwire.Frame {
		f = node(f)
		f.CallID = ""
		return f
	}
	return []vector{
		frameVector("frame-accept", "a unary call that takes longer than 20 ms", node(contextwire.Frame{Kind: contextwire.FrameAccept, Grace: 5 * time.Second})),
		frameVector("frame-accept-stream", "a stream begins and says where grants go", node(contextwire.Frame{Kind: contextwire.FrameAccept, CreditTo: "_INBOX.abc.credit"})),
		frameVector("frame-progress", "half done", node(contextwire.Frame{Kind: contextwire.FrameProgress, Progress: &module.ProgressReport{Done: 5, Total: 10, Note: "half"}})),
		frameVector("frame-trace", "the trace of a call, before its result", node(contextwire.Frame{Kind: contextwire.FrameTrace, Body: map[string]any{"module_id": "math.add", "success": true}})),
		frameVector("frame-data", "the fourth chunk of a stream", contextwire.Frame{Kind: contextwire.FrameData, Seq: 3, Body: map[string]any{"index": int64(3), "word": "be"}}),
		frameVector("frame-end", "a stream of 17 chunks is complete", node(contextwire.Frame{Kind: contextwire.FrameEnd, Seq: 17, Body: map[string]any{"count": int64(17)}})),
		frameVector("frame-result", "a unary call succeeded", node(contextwire.Frame{Kind: contextwire.FrameResult, Body: map[string]any{"sum": 3.0}})),
		frameVector("frame-result-preflight", "the answer to check is a PreflightResult", node(contextwire.Frame{Kind: contextwire.FrameResult, Body: preflight.Map()})),
		frameVector("frame-result-control", "the answer to a ping", control(contextwire.Frame{Kind: contextwire.FrameResult, Body: pong().Map()})),
		frameVector("frame-error", "a call failed inside the module's checks", node(contextwire.Frame{Kind: contextwire.FrameError, Err: failure})),
		frameVector("frame-error-unexecuted", "a full node refuses", node(contextwire.Frame{Kind: contextwire.FrameError, Err: busy, RetryAfter: 120 * time.Millisecond})),
	}
}

func frameVector(name, about string, f contextwire.Frame) vector {
	want := f
	if f.Err != nil {
		e := *f.Err
		e.Remote = true
		want.Err = &e
	}
	return vector{
		name: name, about: about,
		encode: func(ct contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.EncodeFrame(&f, ct)
		},
		decode: func(ct contextwire.ContentType, h contextwire.Header, body []byte) (any, error) {
			got, err := contextwire.DecodeFrame(h, body, contextwire.Limits{})
			if got != nil && got.Kind != contextwire.FrameAccept && got.ContentType != ct {
				return nil, fmt.Errorf("content type %q", got.ContentType)
			}
			if got != nil {
				got.ContentType = ""
			}
			return got, err
		},
		want: &want,
	}
}

func replyVectors() []vector {
	failure := module.Errorf(module.CodeModuleNotFound, "no module math.sub")
	failure.Timestamp = at
	remote := *failure
	remote.Remote = true
	bodyRef := contextwire.NewBodyRef("blob-1", []byte(`{"context":{},"inputs":{}}`))
	return []vector{{
		name: "reply-bare", about: "the answer to a bare request has no headers", jsonOnly: true,
		encode: func(contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.EncodeBareReply(map[string]any{"sum": int64(3)}, nil)
		},
		decode: func(_ contextwire.ContentType, h contextwire.Header, body []byte) (any, error) {
			return contextwire.DecodeBareReply(h, body, contextwire.Limits{})
		},
		want: map[string]any{"sum": int64(3)},
	}, {
		name: "reply-bare-error", about: "a failed bare request", jsonOnly: true,
		encode: func(contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.EncodeBareReply(nil, failure)
		},
		decode: func(_ contextwire.ContentType, h contextwire.Header, body []byte) (any, error) {
			_, err := contextwire.DecodeBareReply(h, body, contextwire.Limits{})
			return module.AsError(err), nil
		},
		want: &remote,
	}, {
		name: "credit-grant", about: "a grant: cumulative totals, no body",
		encode: func(contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.EncodeCredit(contextwire.Credit{Frames: 96, Bytes: 1_572_864}), nil, nil
		},
		decode: func(_ contextwire.ContentType, h contextwire.Header, _ []byte) (any, error) {
			return contextwire.DecodeCredit(h)
		},
		want: contextwire.Credit{Frames: 96, Bytes: 1_572_864},
	}, {
		name: "body-ref", about: "a reference to a body in the object store", jsonOnly: true,
		encode: func(contextwire.ContentType) (contextwire.Header, []byte, error) {
			return contextwire.Header{contextwire.HeaderBodyRef: {bodyRef.String()}}, nil, nil
		},
		decode: func(_ contextwire.ContentType, h contextwire.Header, _ []byte) (any, error) {
			ref, ok := contextwire.ParseBodyRef(h.Get(contextwire.HeaderBodyRef))
			if !ok {
				return nil, fmt.Errorf("malformed")
			}
			return ref, nil
		},
		want: bodyRef,
	}}
}

func pong() *contextwire.Pong {
	return &contextwire.Pong{Node: "n1", Boot: "b00tB00t", InFlight: 3, Debt: 1, Unknown: []string{contextwire.FormatKey(callID, 1)}}
}

func controlVectors() []vector {
	return []vector{
		control("cancel-call", "cancel one attempt of a call", &contextwire.CancelNotice{Call: callID, Attempt: 1, Reason: "user pressed stop", By: "ana", At: at}, contextwire.DecodeCancelNotice),
		control("cancel-root", "cancel a whole tree", &contextwire.CancelNotice{Root: rootID, Reason: "deadline", At: at}, contextwire.DecodeCancelNotice),
		control("cancel-answer", "a process with a match answers", &contextwire.CancelAnswer{Node: "n1", Boot: "b00tB00t", Calls: []string{callID}, State: contextwire.CancelCancelling}, contextwire.DecodeCancelAnswer),
		control("ping", "what changed since the last ping", &contextwire.Ping{Client: "_INBOX.abc", Open: []string{contextwire.FormatKey(callID, 1)}}, contextwire.DecodePing),
		control("pong", "alive, and one call is not known here", pong(), contextwire.DecodePong),
		control("probe", "is the client alive", &contextwire.Probe{Node: "n1", Boot: "b00tB00t"}, contextwire.DecodeProbe),
		control("probe-calls", "is the client alive, and does it still wait for this call", &contextwire.Probe{Node: "n1", Boot: "b00tB00t", Calls: []string{contextwire.FormatKey(callID, 1)}}, contextwire.DecodeProbe),
		control("probe-answer", "the client no longer waits for this call", &contextwire.ProbeAnswer{Unknown: []string{contextwire.FormatKey(callID, 1)}}, decodeProbeAnswer),
		control("probe-answer-alive", "the client is alive", &contextwire.ProbeAnswer{}, decodeProbeAnswer),
		control("drain", "finish within ten seconds", &contextwire.DrainRequest{GraceMS: 10_000, By: "ops"}, contextwire.DecodeDrainRequest),
		control("drain-answer", "three calls are still running", &contextwire.DrainAnswer{InFlight: 3}, contextwire.DecodeDrainAnswer),
		control("describe", "ask for one descriptor", &contextwire.DescribeRequest{Module: "math.add"}, contextwire.DecodeDescribeRequest),
		control("calls", "ask for the calls of one trace", &contextwire.CallsRequest{Trace: traceID, Limit: 100}, contextwire.DecodeCallsRequest),
		control("call-list", "calls in flight", &contextwire.CallList{Node: "n1", Boot: "b00tB00t", Truncated: true, Calls: []contextwire.CallRecord{{
			Call: callID, Attempt: 1, Root: rootID, Parent: rootID, ModuleID: "demo.sleep", Node: "n1", Boot: "b00tB00t",
			CallerID: "near.chain", IdentityID: "ana", TraceID: traceID, Mode: contextwire.ModeUnary, StartedAt: at, BudgetMS: 30_000, State: "running",
		}, {Call: rootID, Attempt: 1, ModuleID: "text.words", Mode: contextwire.ModeStream, State: "queued"}}}, contextwire.DecodeCallList),
		control("stats", "what a process does and has done", &contextwire.NodeStats{
			Node: "n1", Boot: "b00tB00t", NS: "default", Version: "1.0.0", Protocol: 1, Capacity: 256, InFlight: 3, Waiting: 1, Debt: 1,
			Tombstones: 2, TombstonesEvicted: 1, Calls: 12, Refused: map[module.Code]int64{module.CodeBusOverloaded: 4}, CancelsObeyed: 2,
			CreditStalls: 5, CreditStalled: 1500 * time.Millisecond,
			Modules: []contextwire.ModuleStats{{
				ModuleID: "math.add", InFlight: 3, Waiting: 1, Calls: 9, Errors: map[module.Code]int64{module.CodeModuleTimeout: 1},
				Latency: []contextwire.LatencyBucket{{UpTo: 95 * time.Microsecond, Count: 8}, {UpTo: 30 * time.Second, Count: 1}},
			}},
		}, contextwire.DecodeNodeStats),
		control("node-record", "a process in the catalogue", &contextwire.NodeRecord{
			Protocol: 1, Node: "n1", Boot: "b00tB00t", NS: "default", Version: "1.0.0", MaxPayload: 1 << 20, Capacity: 256, InFlight: 3,
			Draining: true, GraceMS: 10_000, Inbox: "_INBOX.abc", At: at,
			Modules: []contextwire.ModuleRef{{ID: "math.add", Version: "1.0.0", Hash: strings.Repeat("ab", 32)}},
		}, contextwire.DecodeNodeRecord),
		control("node-record-named", "a process that takes only calls that name it", &contextwire.NodeRecord{
			Protocol: 1, Node: "router", Boot: "b00tB00t", NS: "default", Version: "1.0.0", MaxPayload: 1 << 20, Capacity: 256,
			GraceMS: 1_000, NamedOnly: true, At: at,
			Modules: []contextwire.ModuleRef{{ID: "system.health.summary", Version: "1.0.0", Hash: strings.Repeat("cd", 32)}},
		}, contextwire.DecodeNodeRecord),
	}
}

func control[T any, P interface {
	*T
	contextwire.ControlMessage
}](name, about string, m P, decode func([]byte, contextwire.ContentType, contextwire.Limits) (P, error)) vector {
	return vector{
		name: name, about: about,
		encode: func(ct contextwire.ContentType) (contextwire.Header, []byte, error) {
			body, err := contextwire.EncodeControl(m, ct)
			return nil, body, err
		},
		decode: func(ct contextwire.ContentType, _ contextwire.Header, body []byte) (any, error) {
			v, err := decode(body, ct, contextwire.Limits{})
			return any(v), err
		},
		want: any(m),
	}
}

func decodeProbeAnswer(body []byte, ct contextwire.ContentType, lim contextwire.Limits) (*contextwire.ProbeAnswer, error) {
	m, err := contextwire.DecodeMap(ct, body, lim)
	if err != nil {
		return nil, err
	}
	return contextwire.ProbeAnswerFromMap(m)
}
