package bus

import (
	"testing"
	"testing/synctest"
	"time"
)

// A host that once was slow and is not called any more becomes attractive again.
func TestLatencyAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := &host{}, &host{}
		slow.answered(400 * time.Millisecond)
		for range 10 {
			fast.answered(10 * time.Millisecond)
			if slow.load() <= fast.load() {
				t.Fatalf("the slow host costs %v, the fast one %v", slow.load(), fast.load())
			}
			time.Sleep(400 * time.Millisecond)
		}
		for range 10 {
			fast.answered(10 * time.Millisecond)
			time.Sleep(400 * time.Millisecond)
		}
		fast.answered(10 * time.Millisecond)
		if slow.load() >= fast.load() {
			t.Errorf("after eight seconds the slow host costs %v, the fast one %v", slow.load(), fast.load())
		}
	})
}
