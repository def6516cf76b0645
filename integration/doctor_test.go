package integration_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// state is what the doctor says of one check, and all that it found there.
func diagnosed(t *testing.T, out, check string) (state, findings string) {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatalf("apbus doctor: %v: %s", err, out)
	}
	for _, c := range list(doc, "checks") {
		if c["check"] == check {
			raw, err := json.Marshal(c["findings"])
			if err != nil {
				t.Fatal(err)
			}
			state, _ = c["state"].(string)
			return state, string(raw)
		}
	}
	t.Fatalf("no check %s: %s", check, out)
	return "", ""
}

// TestDoctorOfARunningSystem asks the doctor over the router, which looks into its
// own server, and from outside.
func TestDoctorOfARunningSystem(t *testing.T) {
	t.Parallel()
	s, _, _ := startPair(t)
	ways := map[string][]string{"router": nil, "outside": {"--nats", s.nats}}
	for way, flags := range ways {
		out, p := s.cli(append(flags, "doctor", "--json")...)
		if p.exit(0) != 0 || strings.Contains(out, `"state":"found"`) || strings.Contains(out, `"state":"skipped"`) {
			t.Errorf("a healthy system, from %s: %s", way, p.log())
		}
	}

	// Somebody watches all calls, answers some in a group of their own, and stores them.
	if _, err := s.peer().SubscribeSync("apbus.v1.call.>"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.peer().QueueSubscribe("apbus.v1.check.default._.math.add", "workers", func(m *nats.Msg) { _ = m.Respond([]byte("{}")) }); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(s.peer())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "CONTROL", Subjects: []string{"apbus.v1.cancel.>"}}); err != nil {
		t.Fatal(err)
	}
	for way, flags := range ways {
		out, p := s.cli(append(flags, "doctor", "--json")...)
		if p.exit(0) != 1 {
			t.Errorf("from %s: exit code %d, want 1: %s", way, p.exit(0), p.log())
		}
		for check, part := range map[string]string{
			"stream_overlap": "stream CONTROL", "wildcard_listener": "no such module or node", "queue_groups": "2 answers",
		} {
			if state, findings := diagnosed(t, out, check); state != "found" || !strings.Contains(findings, part) {
				t.Errorf("from %s: %s is %s: %s", way, check, state, findings)
			}
		}
	}
	out, _ := s.cli("doctor", "--json")
	for check, part := range map[string]string{"wildcard_listener": `"what":"apbus.v1.call.\u003e"`, "queue_groups": `in the queue group \"workers\"`} {
		if _, findings := diagnosed(t, out, check); !strings.Contains(findings, part) {
			t.Errorf("the server was not looked into: %s: %s", check, findings)
		}
	}
	if out, p := s.cli("doctor"); p.exit(0) != 1 || !strings.Contains(out, "    mend: narrow its subjects: nats stream edit CONTROL") {
		t.Errorf("for people: %s", p.log())
	}
}
