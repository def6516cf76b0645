package executor

import (
	"time"

	"github.com/apbus/apbus/module"
)

// The public defaults of [Config].
const (
	DefaultTimeout         = 30 * time.Second
	DefaultGlobalTimeout   = 60 * time.Second
	DefaultGracePeriod     = 5 * time.Second
	DefaultACLTimeout      = time.Second
	DefaultMaxCallDepth    = 32
	DefaultMaxModuleRepeat = 3
	DefaultMaxMergeDepth   = module.DefaultMergeDepth
)

// Config holds every setting of an [Executor]. The zero value means the public
// defaults. Durations are pointers because zero is a setting of its own:
// Config{GracePeriod: new(time.Duration(0))}.
type Config struct {
	// DefaultTimeout is the limit of a module that declares none; nil means 30 s,
	// zero none, which is logged.
	DefaultTimeout *time.Duration
	// GlobalTimeout bounds a whole tree of calls in this process, from the first
	// step of its root; nil means 60 s, zero none, which is logged.
	GlobalTimeout *time.Duration
	// GracePeriod is how long a module may clean up after its time was over; nil
	// means 5 s, zero that the call fails at once.
	GracePeriod *time.Duration
	// ACLTimeout bounds the evaluation of the ACL, which fails closed past it; nil
	// means 1 s, zero no bound.
	ACLTimeout *time.Duration
	// MaxCallDepth is the longest call chain, target included: 1 to 1000, 0 means 32.
	MaxCallDepth int
	// MaxModuleRepeat is how often a module may stand in a chain: 1 to 100, 0
	// means 3.
	MaxModuleRepeat int
	// MaxMergeDepth is how many levels of objects the chunks of a stream are merged
	// (stream.max_merge_depth): 1 to 64, 0 means 32.
	MaxMergeDepth int
}

// settings is a Config with its defaults filled in.
type settings struct {
	timeout, global, grace, acl time.Duration
	depth, repeat, merge        int
}

func (c Config) resolve() (settings, error) {
	s := settings{
		timeout: orDefault(c.DefaultTimeout, DefaultTimeout),
		global:  orDefault(c.GlobalTimeout, DefaultGlobalTimeout),
		grace:   orDefault(c.GracePeriod, DefaultGracePeriod),
		acl:     orDefault(c.ACLTimeout, DefaultACLTimeout),
		depth:   c.MaxCallDepth, repeat: c.MaxModuleRepeat, merge: c.MaxMergeDepth,
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{
		{"default_timeout", s.timeout}, {"global_timeout", s.global},
		{"grace_period", s.grace}, {"acl_timeout", s.acl},
	} {
		if d.value < 0 {
			return s, module.Errorf(module.CodeInvalidInput, "executor.%s is negative", d.key)
		}
	}
	if s.depth == 0 {
		s.depth = DefaultMaxCallDepth
	}
	if s.repeat == 0 {
		s.repeat = DefaultMaxModuleRepeat
	}
	if s.merge == 0 {
		s.merge = DefaultMaxMergeDepth
	}
	if s.merge < 1 || s.merge > 64 {
		return s, module.Errorf(module.CodeInvalidInput, "stream.max_merge_depth is %d, want 1 to 64", s.merge)
	}
	if s.depth < 1 || s.depth > 1000 {
		return s, module.Errorf(module.CodeInvalidInput, "executor.max_call_depth is %d, want 1 to 1000", s.depth)
	}
	if s.repeat < 1 || s.repeat > 100 {
		return s, module.Errorf(module.CodeInvalidInput, "executor.max_module_repeat is %d, want 1 to 100", s.repeat)
	}
	return s, nil
}

func orDefault(p *time.Duration, d time.Duration) time.Duration {
	if p == nil {
		return d
	}
	return *p
}
