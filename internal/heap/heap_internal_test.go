package heap

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestGarbageIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name          string
		live, garbage uint64
	}{
		{"next to nothing", 8 << 20, leastGarbage},
		{"as much as is alive", 100 << 20, 100 << 20},
		{"a million tasks", 640 << 20, mostGarbage},
		{"so much that it is never less than a tenth", 4 << 30, 4 << 30 / 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.live * uint64(garbagePercent(tt.live)) / 100
			if got > tt.garbage || got < tt.garbage*95/100 {
				t.Errorf("%d bytes of garbage beside %d, want %d", got, tt.live, tt.garbage)
			}
		})
	}
}

func TestTheHeapIsTended(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	leave := Tend(t.Context(), func(string) (string, bool) { return "", false })
	for end := time.Now().Add(10 * time.Second); percent() == 100; {
		if time.Now().After(end) {
			t.Fatal("nobody tends it")
		}
		runtime.Gosched()
	}
	leave()
	if p := percent(); p != 100 {
		t.Errorf("%d %% are left behind", p)
	}
	leave = Tend(t.Context(), func(name string) (string, bool) { return "50", name == "GOGC" })
	leave()
	if p := percent(); p != 100 {
		t.Errorf("%d %% though GOGC is set", p)
	}
}
