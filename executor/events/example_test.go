package events_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/apbus/apbus/executor/events"
	"github.com/apbus/apbus/module"
)

// Emit is what the executor, the registry and middlewares are given as their
// function for events.
func ExampleEmitter() {
	e := events.New(events.Options{})
	_, err := e.Subscribe(events.Stdout(os.Stdout, events.StdoutOptions{}), events.SubscribeOptions{Pattern: "apcore.acl.*"})
	if err != nil {
		fmt.Println(err)
		return
	}
	at := time.Date(2026, 9, 16, 10, 30, 0, 0, time.UTC)
	e.Emit(module.Event{Type: module.EventACLDenied, ModuleID: "shop.refund", Severity: module.SeverityWarn, At: at, Data: map[string]any{"reason": "default_effect"}})
	e.Emit(module.Event{Type: "shop.sold", At: at})
	if err := e.Shutdown(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: 2026-09-16T10:30:00.000Z warn  apcore.acl.denied shop.refund {"reason":"default_effect"}
}
