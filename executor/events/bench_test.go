package events_test

import (
	"context"
	"testing"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

func BenchmarkEmit(b *testing.B) {
	ev := module.Event{Type: "apcore.acl.denied", ModuleID: "shop.orders", Severity: module.SeverityWarn, Data: obj{"a": "b"}}
	nothing := events.SubscriberFunc(func(context.Context, module.Event) error { return nil })
	b.Run("nobody", func(b *testing.B) {
		e, _ := emitter(b, events.Options{})
		b.ReportAllocs()
		for b.Loop() {
			e.Emit(ev)
		}
	})
	b.Run("nobody interested", func(b *testing.B) {
		e, _ := emitter(b, events.Options{})
		subscribe(b, e, nothing, events.SubscribeOptions{Pattern: "shop.*"})
		b.ReportAllocs()
		for b.Loop() {
			e.Emit(ev)
		}
	})
	b.Run("one", func(b *testing.B) {
		e, _ := emitter(b, events.Options{QueueSize: 1 << 12})
		subscribe(b, e, nothing, events.SubscribeOptions{})
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			e.Emit(ev)
			if i%(1<<11) == 0 {
				e.Flush(0)
			}
		}
	})
}
