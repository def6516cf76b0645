package events

import (
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/apbus/apbus/module"
)

// Build makes a subscriber from its part of a configuration. It refuses a bad one
// with CONFIG_INVALID.
type Build func(config map[string]any) (Subscriber, error)

// Types are the subscriber types that a configuration may name: the built-in
// stdout, file, webhook, a2a and filter, and those that a program registers. It is
// a value of the program. Safe for concurrent use.
type Types struct {
	out io.Writer

	mu     sync.RWMutex
	custom map[string]Build
}

// NewTypes makes the built-in types; out is where stdout writes.
func NewTypes(out io.Writer) *Types { return &Types{out: out, custom: map[string]Build{}} }

// Register adds a type or replaces one, a built-in one included.
func (t *Types) Register(name string, b Build) error {
	if name == "" || b == nil {
		return module.Errorf(module.CodeInvalidInput, "a subscriber type needs a name and a function")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.custom[name] = b
	return nil
}

// Unregister removes a registered type and reports whether there was one; a
// built-in type that it had replaced is back.
func (t *Types) Unregister(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.custom[name]
	delete(t.custom, name)
	return ok
}

// Reset leaves the built-in types only.
func (t *Types) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.custom)
}

// Names lists the types, sorted.
func (t *Types) Names() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	names := []string{"a2a", "file", "filter", "stdout", "webhook"}
	for n := range t.custom {
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Build makes a subscriber of config["type"] and the options of its subscription:
// id, event_pattern, retry {max_attempts, initial_backoff_ms, max_backoff_ms,
// multiplier}, and for webhook and a2a timeout_ms, for webhook retry_count, which
// counts retries and loses against retry. The rest belongs to the type. Unknown
// types, keys of built-in types, and values of the wrong kind are CONFIG_INVALID,
// which names the key and not the value.
func (t *Types) Build(config map[string]any) (Subscriber, SubscribeOptions, error) {
	r := &reader{config: maps.Clone(config)}
	kind := r.text("type", "")
	o := SubscribeOptions{ID: r.text("id", ""), Pattern: r.text("event_pattern", "")}
	if kind == "webhook" || kind == "a2a" {
		o.Timeout = r.millis("timeout_ms", 5*time.Second)
	}
	if kind == "webhook" {
		if n, set := r.count("retry_count"); set {
			o.Retry.MaxAttempts = n + 1
		}
	}
	if retry := r.object("retry"); retry != nil {
		in := &reader{config: maps.Clone(retry), under: "retry."}
		if n, set := in.count("max_attempts"); set {
			if o.Retry.MaxAttempts = n; n < 1 {
				in.refuse("max_attempts")
			}
		} else {
			o.Retry.MaxAttempts = 0
		}
		o.Retry.InitialBackoff = in.millis("initial_backoff_ms", 0)
		o.Retry.MaxBackoff = in.millis("max_backoff_ms", 0)
		o.Retry.Multiplier = in.number("multiplier", 0)
		in.rest()
		r.adopt(in)
	}
	if r.err != nil {
		return nil, o, r.err
	}
	if _, err := o.Retry.withDefaults(); err != nil {
		return nil, o, module.Wrap(module.CodeConfigInvalid, err, "events subscriber: retry is out of range")
	}
	t.mu.RLock()
	custom := t.custom[kind]
	t.mu.RUnlock()
	if custom != nil {
		s, err := custom(r.config)
		return s, o, err
	}
	s, err := t.builtin(kind, r, &o)
	return s, o, err
}

func (t *Types) builtin(kind string, r *reader, o *SubscribeOptions) (s Subscriber, err error) {
	switch kind {
	case "stdout":
		out := StdoutOptions{JSON: r.choice("format", "text", "json") == "json", MinSeverity: r.text("level_filter", "")}
		if out.MinSeverity != "" && !knownSeverity(out.MinSeverity) {
			r.refuse("level_filter")
		}
		s = Stdout(t.out, out)
	case "file":
		path := r.required("path")
		s = File(path, FileOptions{
			Truncate: !r.flag("append", true), Text: r.choice("format", "json", "text") == "text", RotateBytes: r.size("rotate_bytes"),
		})
	case "webhook":
		if s, err = Webhook(r.required("url"), WebhookOptions{Headers: r.texts("headers")}); err != nil && r.err == nil {
			return nil, err
		}
	case "a2a":
		agent := A2AOptions{Skill: r.text("skill_id", "")}
		if auth, isText := r.config["auth"].(string); isText {
			agent.Bearer = auth
			delete(r.config, "auth")
		} else {
			agent.Headers = r.texts("auth")
		}
		if s, err = A2A(r.required("platform_url"), agent); err != nil && r.err == nil {
			return nil, err
		}
	case "filter":
		if s, err = t.filter(r, o); err != nil {
			return nil, err
		}
	default:
		r.refuse("type")
	}
	r.rest()
	if r.err != nil {
		return nil, r.err
	}
	return s, nil
}

// filter has the retries and the time limit of its delegate where it has none of its
// own.
func (t *Types) filter(r *reader, o *SubscribeOptions) (Subscriber, error) {
	patterns := FilterOptions{Include: r.list("include_events"), Exclude: r.list("exclude_events")}
	delegate := maps.Clone(r.object("delegate_config"))
	if delegate == nil {
		delegate = map[string]any{}
	}
	delegate["type"] = r.required("delegate_type")
	if r.err != nil {
		return nil, r.err
	}
	to, behind, err := t.Build(delegate)
	if err != nil {
		return nil, err
	}
	if o.Retry == (RetryPolicy{}) {
		o.Retry = behind.Retry
	}
	o.Timeout = behind.Timeout
	return Filter(to, patterns), nil
}
