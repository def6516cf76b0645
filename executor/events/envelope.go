package events

import (
	"time"

	"github.com/apbus/apbus/module"
)

// Envelope is the wire form of an event: event_type, module_id (nil when there is
// none), timestamp (UTC, milliseconds), severity and data. Its data is the event's
// own and must not be changed.
func Envelope(e module.Event) map[string]any {
	return map[string]any{
		"event_type": e.Type, "module_id": nullText(e.ModuleID), "timestamp": timestamp(e.At),
		"severity": e.Severity, "data": payload(e),
	}
}

func payload(e module.Event) map[string]any {
	if e.Data == nil {
		return map[string]any{}
	}
	return e.Data
}

func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// rank orders severities; an unknown one ranks as info.
func rank(severity string) int {
	switch severity {
	case module.SeverityWarn:
		return 1
	case module.SeverityError:
		return 2
	case module.SeverityFatal:
		return 3
	}
	return 0
}

func knownSeverity(s string) bool {
	switch s {
	case module.SeverityInfo, module.SeverityWarn, module.SeverityError, module.SeverityFatal:
		return true
	}
	return false
}
