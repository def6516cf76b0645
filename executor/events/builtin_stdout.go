package events

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/apbus/apbus/module"
)

// StdoutOptions configures [Stdout].
type StdoutOptions struct {
	// JSON writes the envelope, one a line, instead of text.
	JSON bool
	// MinSeverity leaves out what is less severe; "" leaves out nothing.
	MinSeverity string
}

type stdout struct {
	o StdoutOptions

	mu sync.Mutex // keeps lines of several subscriptions apart
	w  io.Writer
}

// Stdout writes events to w, one line each.
func Stdout(w io.Writer, o StdoutOptions) Subscriber { return &stdout{w: w, o: o} }

func (*stdout) SubscriberType() string { return "stdout" }

// OnEvent writes a line.
func (s *stdout) OnEvent(_ context.Context, e module.Event) error {
	if s.o.MinSeverity != "" && rank(e.Severity) < rank(s.o.MinSeverity) {
		return nil
	}
	var line []byte
	var err error
	if s.o.JSON {
		line, err = json.Marshal(Envelope(e))
	} else {
		line, err = textLine(e)
	}
	if err != nil {
		return Permanent(fmt.Errorf("event has no json form: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.w.Write(append(line, '\n'))
	return err
}

// textLine quotes nothing but the data, whose JSON has no line breaks; a type or
// module ID with one would forge a line, so it is quoted.
func textLine(e module.Event) ([]byte, error) {
	data, err := json.Marshal(payload(e))
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%s %-5s %s %s %s", timestamp(e.At), oneLine(e.Severity), oneLine(e.Type), oneLine(e.ModuleID), data), nil
}

func oneLine(s string) string {
	if s == "" {
		return "-"
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return fmt.Sprintf("%q", s)
		}
	}
	return s
}
