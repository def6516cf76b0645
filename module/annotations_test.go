package module_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

// canonical is the full wire form of default annotations with some changed.
func canonical(changes obj) obj {
	m := obj{
		"readonly": false, "destructive": false, "idempotent": false, "requires_approval": false, "streaming": false,
		"cacheable": false, "paginated": false, "discoverable": true, "open_world": true, "cache_ttl": int64(0),
		"cache_key_fields": nil, "pagination_style": "cursor", "extra": obj{},
	}
	for k, v := range changes {
		m[k] = v
	}
	return m
}

func TestAnnotationsWire(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   string
		want obj
		warn int
	}{
		{"nothing", `{}`, canonical(nil), 0},
		{"every field", `{"readonly":true,"destructive":true,"idempotent":true,"requires_approval":true,"streaming":true,"cacheable":true,
			"paginated":true,"discoverable":false,"open_world":false,"cache_ttl":60,"cache_key_fields":["q","locale"],"pagination_style":"offset",
			"extra":{"tool.kind":"search"}}`, obj{
			"readonly": true, "destructive": true, "idempotent": true, "requires_approval": true, "streaming": true, "cacheable": true,
			"paginated": true, "discoverable": false, "open_world": false, "cache_ttl": int64(60), "cache_key_fields": []any{"q", "locale"},
			"pagination_style": "offset", "extra": obj{"tool.kind": "search"},
		}, 0},
		{"namespaces side by side", `{"extra":{"a.x":"1","a.y":"2","b.x":7}}`, canonical(obj{"extra": obj{"a.x": "1", "a.y": "2", "b.x": int64(7)}}), 0},
		{"nested values and scripts", `{"extra":{"ui.label.el":"Επιβεβαίωση","ui.icons":["✅","🔑"],"when":{"mon":{"from":9.5}}}}`,
			canonical(obj{"extra": obj{"ui.label.el": "Επιβεβαίωση", "ui.icons": []any{"✅", "🔑"}, "when": obj{"mon": obj{"from": 9.5}}}}), 0},
		{"dots are part of the name", `{"extra":{"a.b.c":1,"a.b":2,"a":3}}`, canonical(obj{"extra": obj{"a.b.c": int64(1), "a.b": int64(2), "a": int64(3)}}), 0},
		{"flattened by an old producer", `{"readonly":true,"tool.kind":"search","cli.ask":"ok?"}`,
			canonical(obj{"readonly": true, "extra": obj{"tool.kind": "search", "cli.ask": "ok?"}}), 0},
		{"nested wins over flattened", `{"tool.kind":"OLD","extra":{"tool.kind":"NEW"}}`, canonical(obj{"extra": obj{"tool.kind": "NEW"}}), 0},
		{"canonical name in extra loses", `{"readonly":false,"extra":{"readonly":true,"extra":"x","k":1}}`, canonical(obj{"extra": obj{"extra": "x", "k": int64(1)}}), 1},
		{"extra of another type", `{"readonly":true,"extra":"oops"}`, canonical(obj{"readonly": true}), 1},
		{"null extra", `{"extra":null}`, canonical(nil), 0},
		{"negative cache_ttl", `{"cacheable":true,"cache_ttl":-5}`, canonical(obj{"cacheable": true}), 1},
		{"integral cache_ttl", `{"cache_ttl":300.0}`, canonical(obj{"cache_ttl": int64(300)}), 0},
		{"fractional cache_ttl", `{"cache_ttl":1.5}`, canonical(nil), 1},
		{"huge cache_ttl", `{"cache_ttl":1e30}`, canonical(nil), 1},
		{"flag of another type", `{"readonly":"yes","discoverable":"no","open_world":0,"destructive":true}`, canonical(obj{"destructive": true}), 3},
		{"keys of another type", `{"cache_key_fields":["a",1],"pagination_style":7}`, canonical(obj{"pagination_style": "cursor"}), 2},
		{"no keys is not null", `{"cache_key_fields":[]}`, canonical(obj{"cache_key_fields": []any{}}), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := logged(t)
			a := module.AnnotationsFromMap(parse(t, tt.in))
			equal(t, "map", a.Map(), tt.want)
			if got := warnings(log); got != tt.warn {
				t.Errorf("%d warnings, want %d: %s", got, tt.warn, log)
			}
			if strings.Contains(log.String(), "oops") {
				t.Error("a value was logged")
			}
			equal(t, "map after another trip", module.AnnotationsFromMap(hop(t, a.Map())).Map(), tt.want)
		})
	}
}

func TestAnnotationsZeroValue(t *testing.T) {
	equal(t, "map", module.Annotations{}.Map(), canonical(nil))
	equal(t, "negative ttl", module.Annotations{CacheTTL: -1}.Map(), canonical(nil))
	a := module.Annotations{Extra: obj{"k": "v"}}
	a.Map()["extra"].(obj)["k"] = "changed"
	equal(t, "extra after a change of the map", a.Extra, obj{"k": "v"})
}

func TestAnnotationsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
		a := module.Annotations{
			Readonly: flag("readonly"), Destructive: flag("destructive"), Idempotent: flag("idempotent"),
			RequiresApproval: flag("approval"), Streaming: flag("streaming"), Cacheable: flag("cacheable"),
			Paginated: flag("paginated"), Hidden: flag("hidden"), ClosedWorld: flag("closed"),
			CacheTTL:        rapid.Int64Min(0).Draw(t, "ttl"),
			PaginationStyle: rapid.SampledFrom([]string{"cursor", "offset", "page"}).Draw(t, "style"),
			CacheKeyFields:  rapid.SliceOfN(rapid.String(), 1, 3).Draw(t, "keys"),
			Extra:           rapid.MapOfN(rapid.StringMatching(`x\.[a-z]{0,3}`), rapid.Int64().AsAny(), 1, 3).Draw(t, "extra"),
		}
		if diff := cmp.Diff(a, module.AnnotationsFromMap(a.Map())); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
