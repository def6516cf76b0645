package events

import (
	"context"

	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// FilterOptions configures [Filter].
type FilterOptions struct {
	// Include are patterns (A25) of which one must match; when there are any, they
	// decide alone.
	Include []string
	// Exclude are patterns of which none may match; they count only without Include.
	Exclude []string
}

type filter struct {
	to Subscriber
	o  FilterOptions
}

// Filter passes on what the patterns let through. Without patterns that is
// everything.
func Filter(to Subscriber, o FilterOptions) Subscriber { return &filter{to: to, o: o} }

func (*filter) SubscriberType() string { return "filter" }

// OnEvent passes the event on or drops it.
func (f *filter) OnEvent(ctx context.Context, e module.Event) error {
	if !f.passes(e.Type) {
		return nil
	}
	return f.to.OnEvent(ctx, e)
}

func (f *filter) passes(eventType string) bool {
	matches := func(patterns []string) bool {
		for _, p := range patterns {
			if schema.MatchGlob(p, eventType) {
				return true
			}
		}
		return false
	}
	if f.o.Include != nil {
		return matches(f.o.Include)
	}
	return !matches(f.o.Exclude)
}

// Close closes the subscriber behind.
func (f *filter) Close() error { return closeSubscriber(f.to) }
