package module_test

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

func TestParseTraceParent(t *testing.T) {
	z := strings.Repeat("0", 32)
	for _, tt := range []struct {
		name, header string
		want         *module.TraceParent
	}{
		{"sampled", parent, &module.TraceParent{Version: "00", TraceID: traceID, ParentID: spanID, Flags: "01"}},
		{"not sampled", "00-" + traceID + "-" + spanID + "-00", &module.TraceParent{Version: "00", TraceID: traceID, ParentID: spanID, Flags: "00"}},
		{"spaces around", "  " + parent + "\t", &module.TraceParent{Version: "00", TraceID: traceID, ParentID: spanID, Flags: "01"}},
		{"future version", "cc-" + traceID + "-" + spanID + "-01-what-ever", &module.TraceParent{Version: "cc", TraceID: traceID, ParentID: spanID, Flags: "01"}},
		{"all f is W3C's business", "00-" + strings.Repeat("f", 32) + "-" + spanID + "-01", &module.TraceParent{Version: "00", TraceID: strings.Repeat("f", 32), ParentID: spanID, Flags: "01"}},
		{"absent", "", nil},
		{"version ff", "ff-" + traceID + "-" + spanID + "-01", nil},
		{"version 00 with more", parent + "-x", nil},
		{"upper case", strings.ToUpper(parent), nil},
		{"zero trace", "00-" + z + "-" + spanID + "-01", nil},
		{"zero parent", "00-" + traceID + "-" + z[:16] + "-01", nil},
		{"short trace", "00-" + traceID[1:] + "-" + spanID + "-01", nil},
		{"long parent", "00-" + traceID + "-" + spanID + "0-01", nil},
		{"bad flags", "00-" + traceID + "-" + spanID + "-1", nil},
		{"no flags", "00-" + traceID + "-" + spanID, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := module.ParseTraceParent(tt.header, "")
			equal(t, "trace parent", got, tt.want)
			if got != nil && tt.name != "future version" && got.Header() != strings.TrimSpace(tt.header) {
				t.Errorf("header %q", got.Header())
			}
		})
	}
}

func TestTraceState(t *testing.T) {
	var many []string
	for i := range 35 {
		many = append(many, fmt.Sprintf("v%02d=x", i))
	}
	for _, tt := range []struct {
		name, in, out string
	}{
		{"in order", "a=1,c=3,b=2", "a=1,c=3,b=2"},
		{"spaces", " a=1 ,\tb=2 ", "a=1,b=2"},
		{"without equals sign", "a=1,bogus,b=2", "a=1,b=2"},
		{"equals sign in the value", "a=b=c", "a=b=c"},
		{"without a key", "=1,a=1", "a=1"},
		{"empty members", ",,a=1,,", "a=1"},
		{"first 32", strings.Join(many, ","), strings.Join(many[:32], ",")},
		{"no header injection", "a=1\r\nX: y,b=2,c=\x00,ü=1", "b=2"},
		{"none", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tp := module.ParseTraceParent(parent, tt.in)
			if got := tp.StateHeader(); got != tt.out {
				t.Errorf("state %q, want %q", got, tt.out)
			}
			equal(t, "again", module.ParseTraceParent(parent, tp.StateHeader()), tp)
		})
	}
	tp := &module.TraceParent{State: make([]module.TraceState, 40)}
	if got := strings.Count(tp.StateHeader(), "="); got != 32 {
		t.Errorf("%d members rendered", got)
	}
}

func TestTraceParentFromHeaders(t *testing.T) {
	for _, tt := range []struct {
		name    string
		headers map[string][]string
		state   string
		found   bool
	}{
		{"lower case", map[string][]string{"traceparent": {parent}, "tracestate": {"a=1"}}, "a=1", true},
		{"any case", map[string][]string{"Traceparent": {parent}, "TRACESTATE": {"a=1"}}, "a=1", true},
		{"several states", map[string][]string{"TraceParent": {parent}, "tracestate": {"a=1", "b=2"}}, "a=1,b=2", true},
		{"two parents", map[string][]string{"traceparent": {parent, parent}}, "", false},
		{"two parents by case", map[string][]string{"traceparent": {parent}, "Traceparent": {parent}}, "", false},
		{"state alone", map[string][]string{"tracestate": {"a=1"}}, "", false},
		{"none", nil, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tp := module.TraceParentFromHeaders(tt.headers)
			if (tp != nil) != tt.found {
				t.Fatalf("found %v", tp)
			}
			if tp != nil && tp.StateHeader() != tt.state {
				t.Errorf("state %q", tp.StateHeader())
			}
		})
	}
}

func TestWithParentID(t *testing.T) {
	tp := module.ParseTraceParent("00-"+traceID+"-"+spanID+"-00", "a=1")
	got, err := tp.WithParentID("aaaaaaaaaaaaaaaa")
	if err != nil || got.Header() != "00-"+traceID+"-aaaaaaaaaaaaaaaa-00" || got.StateHeader() != "a=1" || tp.ParentID != spanID {
		t.Errorf("header %q, original %q, error %v", got.Header(), tp.Header(), err)
	}
	for _, id := range []string{"", "ZZZZ", "AAAAAAAAAAAAAAAA", "aaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaa"} {
		_, err := tp.WithParentID(id)
		hasCode(t, err, module.CodeInvalidParentID)
	}
}

func TestTraceParentDefaults(t *testing.T) {
	if got := (&module.TraceParent{TraceID: traceID, ParentID: spanID}).Header(); got != parent {
		t.Errorf("header %q", got)
	}
}

func TestNewIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		id := module.NewTraceID()
		if !module.ValidTraceID(id) || seen[id] {
			t.Fatalf("trace id %q", id)
		}
		seen[id] = true
		if _, err := (&module.TraceParent{}).WithParentID(module.NewSpanID()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTraceParentRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		header := "00-" + rapid.StringMatching(`[1-9a-f][0-9a-f]{31}`).Draw(t, "trace") + "-" +
			rapid.StringMatching(`[1-9a-f][0-9a-f]{15}`).Draw(t, "span") + "-" + rapid.StringMatching(`[0-9a-f]{2}`).Draw(t, "flags")
		if got := module.ParseTraceParent(header, ""); got == nil || got.Header() != header {
			t.Fatalf("%q became %v", header, got)
		}
	})
}
