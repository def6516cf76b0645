package bus

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/apbus/apbus/contextwire"
)

const (
	// nodeSweep and clientSweep are how often a process looks for bodies without an
	// owner, a little more or less, so that many do not look at once.
	nodeSweep   = 10 * time.Second
	clientSweep = 2 * time.Second
	// sweepWidth is how many owners are asked at once.
	sweepWidth = 16
)

// sweeper deletes bodies whose owner will not: that of a caller that is gone, and
// the answer to a call that its caller no longer waits for. Names say whose they
// are (wire protocol, section 6); an object with another name is left to the
// bucket's TTL. Several processes may sweep at once. Only run uses it.
type sweeper struct {
	store *bodyStore
	every time.Duration
	// ask probes a caller about calls.
	ask func(ctx context.Context, inbox string, calls []string) (*contextwire.ProbeAnswer, error)
	// away reports whether our own connection may be why somebody is not seen.
	away func() bool
	log  *slog.Logger
	gone map[string]time.Time // owners that nobody listened for, since when
}

// body is one object, as far as its name tells.
type body struct {
	name string
	key  string // "call/attempt" when it is an answer
}

func (s *sweeper) run(ctx context.Context) {
	s.gone = map[string]time.Time{}
	t := time.NewTimer(s.pause())
	defer t.Stop()
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if time.Since(last) > 2*s.every {
			clear(s.gone) // we stood still, and perhaps the others too
		}
		one, stop := context.WithTimeoutCause(ctx, bodyPatience, errBodyLate)
		if err := s.sweep(one); err != nil && ctx.Err() == nil {
			s.log.Debug("cannot sweep the object store", "cause", err)
		}
		stop()
		t.Reset(s.pause())
	}
}

func (s *sweeper) pause() time.Duration {
	return s.every*3/4 + rand.N(s.every/2) //nolint:gosec // jitter needs no secrecy
}

func (s *sweeper) sweep(ctx context.Context) error {
	if s.away() {
		clear(s.gone)
		return nil
	}
	stream, err := s.store.existing(ctx)
	if err != nil || stream == nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter("$O."+bodyBucket+".>"))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	owners := ownersOf(maps.Keys(info.State.Subjects))
	maps.DeleteFunc(s.gone, func(inbox string, _ time.Time) bool { return owners[inbox] == nil })
	var (
		mu   sync.Mutex
		idle []string
	)
	for inboxes := range slices.Chunk(slices.Collect(maps.Keys(owners)), sweepWidth) {
		var wg sync.WaitGroup
		for _, inbox := range inboxes {
			wg.Go(func() {
				names := s.judge(ctx, inbox, owners[inbox], &mu)
				mu.Lock()
				defer mu.Unlock()
				idle = append(idle, names...)
			})
		}
		wg.Wait()
	}
	for _, name := range idle {
		if err := s.store.remove(ctx, name); err != nil {
			return err
		}
	}
	if len(idle) > 0 {
		s.log.Info("deleted large bodies that nobody waits for", "bodies", len(idle))
	}
	return nil
}

// judge asks one owner and returns the names of what it does not need.
func (s *sweeper) judge(ctx context.Context, inbox string, bodies []body, mu *sync.Mutex) []string {
	ctx, stop := context.WithTimeoutCause(ctx, pingPatience, errNoProbeAnswer)
	defer stop()
	var calls, names []string
	for _, b := range bodies {
		if names = append(names, b.name); b.key != "" {
			calls = append(calls, b.key)
		}
	}
	answer, err := s.ask(ctx, inbox, calls)
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err == nil:
		delete(s.gone, inbox)
		names = names[:0]
		for _, b := range bodies {
			if b.key != "" && slices.Contains(answer.Unknown, b.key) {
				names = append(names, b.name)
			}
		}
		return names
	case !errors.Is(err, ErrNoResponders) || s.away():
		delete(s.gone, inbox) // it may be there
		return nil
	}
	// One that reconnects is away for a moment.
	since, before := s.gone[inbox]
	if !before {
		s.gone[inbox] = time.Now()
	}
	if !before || time.Since(since) < settleTime {
		return nil
	}
	delete(s.gone, inbox)
	return names
}

// ownersOf sorts what lies in the bucket by the inbox prefix of its owner.
func ownersOf(subjects func(yield func(string) bool)) map[string][]body {
	owners := map[string][]body{}
	seen := map[string]bool{}
	for subject := range subjects {
		name := nameOf(subject)
		i := strings.LastIndexByte(name, '.')
		if seen[name] || i <= 0 || !isPlainSubject(name) {
			continue
		}
		seen[name] = true
		owners[name[:i]] = append(owners[name[:i]], body{name: name, key: keyOf(name[i+1:])})
	}
	return owners
}

// keyOf reads the last token of a reply subject of ours, <call>-<attempt>.
func keyOf(token string) string {
	i := strings.LastIndexByte(token, '-')
	if i < 0 {
		return ""
	}
	attempt, err := strconv.Atoi(token[i+1:])
	if err != nil {
		return ""
	}
	key := contextwire.FormatKey(token[:i], attempt)
	if _, _, ok := contextwire.ParseKey(key); !ok {
		return ""
	}
	return key
}

// isPlainSubject reports whether s can be published to.
func isPlainSubject(s string) bool {
	return !strings.ContainsAny(s, "*> \t") && !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".") && !strings.Contains(s, "..") && !strings.HasPrefix(s, "$")
}
