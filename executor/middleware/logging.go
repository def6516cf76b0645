package middleware

import (
	"context"
	"log/slog"
	"time"

	"github.com/apbus/apbus/module"
)

// Logging writes one record when a call starts and one when it ends, however that
// was. It shows
// inputs and outputs only as the Context's redacted copies (decision D-131),
// and of an error only its code, since texts may quote values.
type Logging struct{ o LoggingOptions }

// LoggingOptions configures [Logging]. The zero value logs ends at info and
// failures at error, without values.
type LoggingOptions struct {
	// Logger is slog.Default when nil.
	Logger *slog.Logger
	// StartLevel is the level of the record at the start; nil leaves it out.
	StartLevel *slog.Level
	// EndLevel is the level of a successful end, info by default.
	EndLevel slog.Level
	// Values adds the redacted inputs and output.
	Values bool
}

var (
	_ BeforeHook = (*Logging)(nil)
	_ AfterHook  = (*Logging)(nil)
	_ ErrorHook  = (*Logging)(nil)
	_ EndHook    = (*Logging)(nil)
)

// NewLogging makes the middleware.
func NewLogging(o LoggingOptions) *Logging {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Logging{o: o}
}

// Name returns "logging".
func (*Logging) Name() string { return "logging" }

// Priority returns 700.
func (*Logging) Priority() int { return 700 }

// Before notes the time and logs the start.
func (l *Logging) Before(ctx context.Context, call *Call) (map[string]any, error) {
	if level := l.o.StartLevel; level != nil && l.o.Logger.Enabled(ctx, *level) {
		l.o.Logger.LogAttrs(ctx, *level, "call started", l.attrs(call, false)...)
	}
	call.begin(l)
	return nil, nil
}

// After logs the end.
func (l *Logging) After(ctx context.Context, call *Call, _ map[string]any) (map[string]any, error) {
	call.SetState(l, logged{})
	if l.o.Logger.Enabled(ctx, l.o.EndLevel) {
		l.o.Logger.LogAttrs(ctx, l.o.EndLevel, "call finished", l.attrs(call, true)...)
	}
	return nil, nil
}

// OnError logs the failure and recovers nothing.
func (l *Logging) OnError(ctx context.Context, call *Call, err *module.Error) (Recovery, error) {
	call.SetState(l, logged{})
	if l.o.Logger.Enabled(ctx, slog.LevelError) {
		attrs := append(l.attrs(call, false), slog.String("code", string(err.Code)))
		l.o.Logger.LogAttrs(ctx, slog.LevelError, "call failed", attrs...)
	}
	return Recovery{}, nil
}

// logged marks a call whose end is in the log.
type logged struct{}

// End logs what the other hooks did not see: a cancellation, at the level of a
// successful end since nothing is wrong with the module, and a failure that another
// middleware recovered.
func (l *Logging) End(ctx context.Context, call *Call, err *module.Error) {
	if _, done := call.State(l).(logged); done {
		return
	}
	level, msg, failure := l.o.EndLevel, "call finished", err
	switch {
	case err == nil:
		if failure = call.Failure(); failure != nil {
			msg = "call recovered"
		}
	case err.Code == module.CodeExecutionCancelled:
		msg = "call cancelled"
	default:
		level, msg = slog.LevelError, "call failed"
	}
	if !l.o.Logger.Enabled(ctx, level) {
		return
	}
	attrs := l.attrs(call, err == nil)
	if failure != nil {
		attrs = append(attrs, slog.String("code", string(failure.Code)))
	}
	l.o.Logger.LogAttrs(ctx, level, msg, attrs...)
}

func (l *Logging) attrs(call *Call, output bool) []slog.Attr {
	attrs := callAttrs(call)
	c := call.Context
	if c == nil {
		return attrs
	}
	if caller := c.CallerID(); caller != "" {
		attrs = append(attrs, slog.String("caller_id", caller))
	}
	if start, ok := call.begun(l); ok {
		attrs = append(attrs, slog.Float64("duration_ms", float64(time.Since(start))/float64(time.Millisecond)))
	}
	if !l.o.Values {
		return attrs
	}
	if in := c.RedactedInputs(); in != nil {
		attrs = append(attrs, slog.Any("inputs", in))
	}
	if out := c.RedactedOutput(); output && out != nil {
		attrs = append(attrs, slog.Any("output", out))
	}
	return attrs
}
