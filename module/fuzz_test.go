package module_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/apbus/apbus/module"
)

func FuzzParseTraceParent(f *testing.F) {
	f.Add(parent, "a=1,b=2")
	f.Add("", ",=,")
	f.Add("cc-"+traceID+"-"+spanID+"-01-more", "a=b=c")
	f.Fuzz(func(t *testing.T, header, state string) {
		tp := module.ParseTraceParent(header, state)
		if tp == nil {
			return
		}
		if strings.ContainsAny(tp.Header()+tp.StateHeader(), "\r\n") || len(tp.State) > 32 {
			t.Fatalf("unsafe: %q %q", tp.Header(), tp.StateHeader())
		}
		again := module.ParseTraceParent(tp.Header(), tp.StateHeader())
		if !reflect.DeepEqual(again, tp) {
			t.Fatalf("%+v became %+v", tp, again)
		}
	})
}

// FuzzFromMap feeds what a peer may send to every reader of a wire form. What they
// accept must read the same after another trip.
func FuzzFromMap(f *testing.F) {
	for _, seed := range []string{
		`{"code":"X","message":"m","timestamp":"2026-09-16T10:30:00.123Z","details":{"a":1},"cause":"c","retryable":true}`,
		`{"id":"u","type":"agent","roles":["r"],"attrs":{"k":[1,{}]}}`,
		`{"module_id":"a.b","tags":["x"],"annotations":{"readonly":1,"x.y":2,"extra":{"z":null}},"resources":{"timeout":1e300},"examples":[{"title":"t"}]}`,
		`{"action":"a","target":"t","summary":"s","before":null,"x-k":[]}`,
		`{"valid":true,"requires_approval":false,"checks":[{"check":"acl","passed":false,"error":{"code":"X"},"warnings":["w"]}],"predicted_changes":[{"action":"a","target":"t","summary":"s"}]}`,
		`{"changes":[{"action":"a","target":"t","summary":"s"}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		var m map[string]any
		if dec.Decode(&m) != nil {
			return
		}
		m, err := module.NormalizeMap(m)
		if err != nil {
			return
		}
		same := func(what string, first, again map[string]any) {
			if !reflect.DeepEqual(first, again) {
				t.Fatalf("%s: %v became %v", what, first, again)
			}
		}
		if e, ok := module.ErrorFromMap(m); ok {
			again, _ := module.ErrorFromMap(e.Map())
			same("error", e.Map(), again.Map())
		}
		if id, err := module.IdentityFromMap(m); err == nil {
			again, err := module.IdentityFromMap(id.Map())
			if err != nil || !again.Equal(id) {
				t.Fatalf("identity: %v, %v", again, err)
			}
		}
		if d, err := module.DescriptorFromMap(m); err == nil {
			again, err := module.DescriptorFromMap(d.Map())
			if err != nil || again.Hash() != d.Hash() || d.Hash() == "" {
				t.Fatalf("descriptor: %v, %v", again, err)
			}
			same("descriptor", d.Map(), again.Map())
		}
		if c, err := module.ChangeFromMap(m); err == nil {
			again, err := module.ChangeFromMap(c.Map())
			if err != nil {
				t.Fatal(err)
			}
			same("change", c.Map(), again.Map())
		}
		if p, err := module.PreviewFromMap(m); err == nil && p != nil {
			again, err := module.PreviewFromMap(p.Map())
			if err != nil {
				t.Fatal(err)
			}
			same("preview", p.Map(), again.Map())
		}
		if r, err := module.PreflightFromMap(m); err == nil {
			again, err := module.PreflightFromMap(r.Map())
			if err != nil {
				t.Fatal(err)
			}
			same("preflight", r.Map(), again.Map())
		}
	})
}
