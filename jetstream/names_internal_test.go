package jetstream

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSubjects(t *testing.T) {
	n, err := newNames("my.bus", "ops")
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"task.0190a1b2-c3":  "my.bus.v1.task.ops.task.0190a1b2-c3",
		"queue.math.add":    "my.bus.v1.task.ops.queue.math.add",
		"schedule.a b":      "my.bus.v1.task.ops.schedule.a=20b",
		"schedule..x..y.":   "my.bus.v1.task.ops.schedule.=2Ex.=2Ey=2E",
		"schedule.*.>=":     "my.bus.v1.task.ops.schedule.=2A.=3E=3D",
		"result.\u00e9\x00": "my.bus.v1.task.ops.result.=C3=A9=00",
	} {
		got, err := n.entry(key)
		if err != nil || got != want {
			t.Errorf("entry(%q) = %q, %v; want %q", key, got, err, want)
		}
		if back, ok := n.key(got); !ok || back != key {
			t.Errorf("key(%q) = %q, %v; want %q", got, back, ok, key)
		}
	}
	for _, key := range []string{"", "task", "task.", ".x", "lead", "lead.x", "rpc.x", "evt.x", "task." + strings.Repeat("x", maxKey)} {
		if s, err := n.entry(key); err == nil {
			t.Errorf("entry(%.20q) = %q, want an error", key, s)
		}
	}
	for _, s := range []string{
		"", "my.bus.v1.task.ops.lead", "my.bus.v1.task.ops.rpc.submit", "my.bus.v1.task.other.task.x",
		"my.bus.v1.task.ops.task.=zz", "my.bus.v1.task.ops.task.=2", "my.bus.v1.task.ops.task.=61", "my.bus.v1.task.ops.task.a=2Eb",
	} {
		if key, ok := n.key(s); ok {
			t.Errorf("key(%q) = %q, want none", s, key)
		}
	}
}

// Every name has a subject of its own that the server takes.
func TestEscapeIsReversible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.RuneFrom([]rune(".=aZ*> ")), 0, 12, -1)).Draw(t, "text")
		got := escape(text)
		for token := range strings.SplitSeq(got, ".") {
			if text != "" && token == "" || strings.ContainsAny(token, " *>\t\r\n") {
				t.Fatalf("escape(%q) = %q, which is no subject", text, got)
			}
		}
		if back, ok := unescape(got); !ok || back != text {
			t.Fatalf("unescape(%q) = %q, %v; want %q", got, back, ok, text)
		}
		if back, ok := unescape(text); ok && escape(back) != text {
			t.Fatalf("unescape(%q) = %q, whose subject is %q", text, back, escape(back))
		}
	})
}
