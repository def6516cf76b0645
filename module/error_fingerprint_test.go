package module_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/apbus/apbus/module"
)

func TestNormalizeMessage(t *testing.T) {
	for _, tt := range []struct{ name, message, want string }{
		{
			"the published vector", "Order 48213 failed at 2026-09-16T10:30:00Z (request a1b2c3d4-e5f6-7890-abcd-ef1234567890)",
			"order <id> failed at <timestamp> (request <uuid>)",
		},
		{"upper-case uuid", "A1B2C3D4-E5F6-7890-ABCD-EF1234567890", "<uuid>"},
		{"date", "on 2026-05-03, retry", "on <timestamp>, retry"},
		{"fraction and offset", "at 2026-05-03T10:15:30.123456+02:00.", "at <timestamp>."},
		{"short numbers stay", "shard 42, port 999", "shard 42, port 999"},
		{"four digits", "port 8080", "port <id>"},
		{"numbers with a unit stay", "after 30000ms", "after 30000ms"},
		{"trim and case", "  \tBad THING\n", "bad thing"},
		{"empty", "", ""},
		{"words with underscores stay", "row_12345", "row_12345"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := module.NormalizeMessage(tt.message); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFingerprint(t *testing.T) {
	const message = "Order 48213 failed at 2026-09-16T10:30:00Z (request a1b2c3d4-e5f6-7890-abcd-ef1234567890)"
	got := module.Fingerprint(module.CodeModuleExecuteError, "executor.orders.submit", message)
	if want := "dba777e10f3022e9eeb69b9b9943b4f76eedecd489bfa57d9bd1eaa00c5f3742"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if module.Fingerprint(module.CodeInternal, "executor.orders.submit", message) == got ||
		module.Fingerprint(module.CodeModuleExecuteError, "executor.orders.get", message) == got {
		t.Error("code and module are not part of it")
	}
}

func TestNormalizeMessageIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		once := module.NormalizeMessage(rapid.StringMatching(`[A-Za-z0-9 :.TZ<>_-]{0,60}`).Draw(t, "message"))
		if twice := module.NormalizeMessage(once); twice != once {
			t.Errorf("%q becomes %q", once, twice)
		}
	})
}

func BenchmarkFingerprint(b *testing.B) {
	for b.Loop() {
		module.Fingerprint(module.CodeModuleExecuteError, "executor.orders.submit", "Order 48213 failed at 2026-09-16T10:30:00Z")
	}
}

func ExampleFingerprint() {
	a := module.Fingerprint("ORDERS_EMPTY", "shop.orders", "order 10001 is empty")
	b := module.Fingerprint("ORDERS_EMPTY", "shop.orders", "order 10002 is empty")
	fmt.Println(a == b)
	// Output: true
}
