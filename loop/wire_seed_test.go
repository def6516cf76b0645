package loop_test

import (
	"strings"
	"testing"

	"github.com/apbus/apbus/loop"
	"github.com/google/go-cmp/cmp"
)

// The cases of the LLM seed's own tests.

func draftsOf(t *testing.T, raw string) []loop.LLMDraft {
	t.Helper()
	r, err := loop.ParseDiscover(raw)
	if err != nil {
		t.Fatalf("ParseDiscover: %v", err)
	}
	return r.Recommendations
}

func TestSeedParseDiscoverDropsGarbage(t *testing.T) {
	if r, err := loop.ParseDiscover("not json"); err == nil || len(r.Recommendations) != 0 {
		t.Errorf("garbage gave %+v, %v", r, err)
	}
	got := draftsOf(t, `{"recommendations":[{"summary":"s","target":"entity:x/y","evidence":["h1"],"junk":1}]}`)
	want := []loop.LLMDraft{{Summary: "s", Target: "entity:x/y", Evidence: []string{"h1"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestSeedParseEnrichReadsNotes(t *testing.T) {
	r, err := loop.ParseEnrich(`{"notes":[{"target":"entity:a/b","guidance":"g"}]}`)
	want := []loop.EnrichNote{{Target: "entity:a/b", Guidance: "g"}}
	if diff := cmp.Diff(want, r.Notes); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestSeedProposals(t *testing.T) {
	tests := []struct {
		name, tail string
		want       loop.DraftProposal
	}{
		{"lesson desugars when no proposal is sent", `"lesson":"Do the thing"`, loop.LessonProposal{Lesson: "Do the thing"}},
		{"null is no proposal", `"lesson":"Do the thing","proposal":null`, loop.LessonProposal{Lesson: "Do the thing"}},
		{"blank lesson is advisory", `"lesson":" \t"`, nil},
		{"explicit proposal wins over lesson", `"lesson":"ignored","proposal":{"kind":"fact","relation":"alias_of","object":"Cobalt Cloud"}`, loop.FactProposal{Relation: "alias_of", Object: "Cobalt Cloud"}},
		{"unknown kind is advisory", `"lesson":"L","proposal":{"kind":"teleport","x":1}`, nil},
		{"wrong shape is advisory", `"lesson":"L","proposal":{"kind":"plan_revision","edits":"not-a-list"}`, nil},
		{"a number is advisory", `"lesson":"L","proposal":42`, nil},
		{"no kind is advisory", `"lesson":"L","proposal":{"lesson":"M"}`, nil},
		{"kind in another case is advisory", `"lesson":"L","proposal":{"Kind":"lesson","lesson":"M"}`, nil},
		{"plan edits carry their staleness check", `"proposal":{"kind":"plan_revision","edits":[{"path":"retries.fetch","from":null,"to":3}]}`, loop.PlanRevision{Edits: []loop.PlanEdit{{Path: "retries.fetch", To: int64(3)}}}},
		{
			"skill", `"proposal":{"kind":"skill","description":"Triage an open ticket batch","when_to_use":"a batch of tickets arrives","steps":["List","Fetch","Update"]}`,
			loop.SkillProposal{Description: "Triage an open ticket batch", WhenToUse: "a batch of tickets arrives", Steps: []string{"List", "Fetch", "Update"}},
		},
		{"a bare skill parses to empties", `"proposal":{"kind":"skill"}`, loop.SkillProposal{}},
		{"query revision", `"proposal":{"kind":"query_revision","body":"b"}`, loop.QueryRevision{Body: "b"}},
		{"code revision", `"proposal":{"kind":"code_revision","source":"s"}`, loop.CodeRevision{Source: "s"}},
		{"consolidation", `"proposal":{"kind":"consolidation","lesson":"l","supersedes":["a","b"]}`, loop.Consolidation{Lesson: "l", Supersedes: []string{"a", "b"}}},
		{
			"plan", `"proposal":{"kind":"plan","description":"d","when_to_use":"w","nodes":[{"id":"a","tool":"t","step":"s"}],"edges":[{"src":"a","dst":"a","cond":"x == 1","max_cycles":2},{"src":"a","dst":"b","cond":null}]}`,
			loop.PlanProposal{
				Description: "d", WhenToUse: "w", Nodes: []loop.PlanNodeDraft{{ID: "a", Tool: "t", Step: "s"}},
				Edges: []loop.PlanEdgeDraft{{Src: "a", Dst: "a", Cond: new("x == 1"), MaxCycles: new(2)}, {Src: "a", Dst: "b"}},
			},
		},
		{"negative cycles are advisory", `"proposal":{"kind":"plan","edges":[{"src":"a","dst":"b","max_cycles":-1}]}`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := draftsOf(t, `{"recommendations":[{"summary":"s","target":"entity:a/b","evidence":["h"],`+tt.tail+`}]}`)
			if len(got) != 1 {
				t.Fatalf("%d drafts, want 1", len(got))
			}
			if diff := cmp.Diff(tt.want, got[0].Parsed()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSeedOneBadProposalDoesNotDropItsSiblings(t *testing.T) {
	got := draftsOf(t, `{"recommendations":[
		{"summary":"a","target":"entity:a/b","evidence":["h"],"proposal":{"kind":"nope"}},
		{"summary":"b","target":"entity:a/c","evidence":["h"],"proposal":{"kind":"lesson","lesson":"Keep me"}}]}`)
	if len(got) != 2 || got[0].Parsed() != nil {
		t.Fatalf("got %+v", got)
	}
	if diff := cmp.Diff(loop.DraftProposal(loop.LessonProposal{Lesson: "Keep me"}), got[1].Parsed()); diff != "" {
		t.Error(diff)
	}
}

func TestSeedCapRespectsCharacters(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		limit    int
		want     string
	}{
		{"ascii", "hello", 3, "hel"},
		{"two-byte character", "héllo", 2, "hé"},
		{"shorter", "hi", 5, "hi"},
		{"exact", "héé", 3, "héé"},
		{"none", "x", 0, ""},
	} {
		if got := loop.Cap(tt.in, tt.limit); got != tt.want {
			t.Errorf("%s: Cap(%q, %d) = %q, want %q", tt.name, tt.in, tt.limit, got, tt.want)
		}
	}
}

func TestDecoderIsStrict(t *testing.T) {
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	ok := `{"summary":"ok"}`
	tests := []struct {
		name, raw string
		drafts    int
		malformed int
		refused   bool
	}{
		{name: "empty object", raw: `{}`},
		{name: "white space around", raw: " \n{\"recommendations\":[" + ok + "]}\n ", drafts: 1},
		{name: "empty", raw: ``, refused: true},
		{name: "a word", raw: `ok`, refused: true},
		{name: "a list", raw: `[]`, refused: true},
		{name: "results as object", raw: `{"recommendations":{}}`, refused: true},
		{name: "null", raw: `{"recommendations":null}`, refused: true},
		{name: "data behind", raw: `{"recommendations":[]} {}`, refused: true},
		{name: "code fence", raw: "```json\n{}\n```", refused: true},
		{name: "key twice", raw: `{"recommendations":[],"recommendations":[` + ok + `]}`, refused: true},
		{name: "key in another case", raw: `{"Recommendations":[` + ok + `]}`},
		{name: "truncated", raw: `{"recommendations":[` + ok, refused: true},
		{name: "not UTF-8", raw: "{\"recommendations\":[{\"summary\":\"\xff\"}]}", refused: true},
		{name: "wrong type costs one", raw: `{"recommendations":[` + ok + `,{"summary":7},` + ok + `]}`, drafts: 2, malformed: 1},
		{name: "null text costs one", raw: `{"recommendations":[{"summary":null},` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "key twice costs one", raw: `{"recommendations":[{"summary":"a","summary":"b"},` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "confidence as text costs one", raw: `{"recommendations":[{"confidence":"0.9"},` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "number beyond 64 bits costs one", raw: `{"recommendations":[{"confidence":1e400},` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "evidence as text costs one", raw: `{"recommendations":[{"evidence":"e1"},` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "deep nesting costs one", raw: `{"recommendations":[{"proposal":` + deep + `},` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "a list as draft costs one", raw: `{"recommendations":[[],` + ok + `]}`, drafts: 1, malformed: 1},
		{name: "only the first eight", raw: `{"recommendations":[` + strings.Repeat(ok+",", 9999) + ok + `]}`, drafts: 8},
		{name: "too large", raw: `{"recommendations":[{"summary":"` + strings.Repeat("x", 1<<20) + `"}]}`, refused: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := loop.ParseDiscover(tt.raw)
			if (err != nil) != tt.refused || len(r.Recommendations) != tt.drafts || r.Malformed != tt.malformed {
				t.Errorf("drafts %d, malformed %d, err %v; want %d, %d, refused %v", len(r.Recommendations), r.Malformed, err, tt.drafts, tt.malformed, tt.refused)
			}
		})
	}
}

func TestVerdictNumbers(t *testing.T) {
	for _, tt := range []struct {
		name, number string
		want         float64
		malformed    bool
	}{
		{name: "a share", number: "0.83", want: 0.83},
		{name: "one", number: "1", want: 1},
		{name: "a percentage is no share", number: "95"},
		{name: "negative", number: "-1"},
		{name: "text", number: `"0.9"`, malformed: true},
		{name: "null", number: `null`, malformed: true},
		{name: "beyond range", number: `1e400`, malformed: true},
	} {
		r, err := loop.ParseVerify(`{"results":[{"id":0,"keep":true,"confidence":` + tt.number + `}]}`)
		if err != nil || (r.Malformed == 1) != tt.malformed {
			t.Errorf("%s: %+v, %v", tt.name, r, err)
			continue
		}
		if !tt.malformed && r.Results[0].Confidence != tt.want {
			t.Errorf("%s: confidence %v, want %v", tt.name, r.Results[0].Confidence, tt.want)
		}
	}
	r, err := loop.ParseGround(`{"results":[{"id":-1,"supported":true},{"id":1.5},{"id":2,"supported":true}]}`)
	if err != nil || r.Malformed != 2 || len(r.Results) != 1 || r.Results[0].ID != 2 {
		t.Errorf("ground: %+v, %v", r, err)
	}
}

func FuzzResponses(f *testing.F) {
	f.Add(`{"recommendations":[{"summary":"s","proposal":{"kind":"plan","nodes":[{"id":"a"}],"edges":[{"src":"a","dst":"b","max_cycles":1}]}}]}`)
	f.Add(`{"results":[{"id":0,"keep":true,"confidence":0.9,"supported":true}]}`)
	f.Add(`{"notes":[{"target":"t","guidance":"g"}]}`)
	f.Fuzz(func(t *testing.T, raw string) {
		r, _ := loop.ParseDiscover(raw)
		if len(r.Recommendations)+r.Malformed > loop.MaxLLMDrafts {
			t.Fatalf("%d drafts", len(r.Recommendations))
		}
		for _, d := range r.Recommendations {
			if d.Confidence < 0 || d.Confidence > 1 {
				t.Fatalf("confidence %v", d.Confidence)
			}
			if p := d.Parsed(); p != nil && p.Kind() == "" {
				t.Fatal("a proposal without a kind")
			}
		}
		_, _ = loop.ParseEnrich(raw)
		_, _ = loop.ParseGround(raw)
		_, _ = loop.ParseVerify(raw)
		_, _ = loop.ParseProbe(raw)
	})
}
