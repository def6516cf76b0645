package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
)

// topCmd shows who does how much, again and again.
type topCmd struct {
	Interval time.Duration `local:"" default:"2s" help:"Time between two looks, over which rates and latencies are taken."`
	Once     bool          `local:"" help:"Look twice, print once and stop."`
	Limit    int           `local:"" default:"30" placeholder:"N" help:"How many modules to show, the busiest first; 0 shows all."`
}

// leastInterval keeps the watching from being the load.
const leastInterval = 100 * time.Millisecond

// Run looks until Ctrl-C, which is the usual end and no failure.
func (c *topCmd) Run(s *session) error {
	if c.Interval < leastInterval || c.Limit < 0 {
		return settings.Usagef("--interval must be at least %v, and --limit not negative", leastInterval)
	}
	err := s.with(func(b backend) error { return c.watch(s, b) })
	if err != nil && s.ctx.Err() != nil {
		return nil
	}
	return err
}

// watch prints what happened since the look before, with every look but the first.
func (c *topCmd) watch(s *session, b backend) error {
	before, err := look(s.ctx, b)
	if err != nil {
		return err
	}
	t := time.NewTicker(c.Interval)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-t.C:
		}
		now, err := look(s.ctx, b)
		switch {
		case err != nil && (c.Once || s.stdout.json || !s.stdout.terminal || s.ctx.Err() != nil):
			return err
		case err != nil: // whoever watches sees it, and when it is over
			err = repaint(s.stdout, s.stdout.red(printable(err.Error()))+"\n")
		default:
			err = c.show(s.stdout, viewOf(before, now))
			before = now
		}
		if err != nil || c.Once {
			return err
		}
	}
}

func look(ctx context.Context, b backend) (glance, error) {
	nodes, err := b.Stats(ctx)
	return glance{time.Now(), nodes}, err
}

// show prints one look: a document, a screen, or plain lines.
func (c *topCmd) show(p *printer, v *topView) error {
	if c.Limit > 0 && len(v.modules) > c.Limit {
		v.modules, v.left = v.modules[:c.Limit], len(v.modules)-c.Limit
	}
	if p.json {
		return p.document(v.document())
	}
	var screen bytes.Buffer
	to := &printer{w: &screen, terminal: p.terminal}
	if err := v.print(to); err != nil {
		return err
	}
	if p.terminal && !c.Once {
		return repaint(p, screen.String())
	}
	_, err := io.Copy(p.w, &screen)
	return err
}

// repaint puts text in the place of what the terminal shows.
func repaint(p *printer, text string) error {
	lines := bytes.ReplaceAll([]byte(text), []byte("\n"), []byte("\x1b[K\n")) // the rest of each line
	_, err := fmt.Fprintf(p.w, "\x1b[H%s\x1b[J", lines)
	return err
}

func (v *topView) print(p *printer) error {
	if p.terminal {
		if err := p.line("%s  %d nodes  %s calls/s  %s errors/s", v.at.Local().Format(time.TimeOnly), len(v.nodes), rate(v.calls), rate(v.errors)); err != nil {
			return err
		}
	}
	rows := make([][]string, 0, len(v.nodes))
	for _, n := range v.nodes {
		state := "live"
		if n.stats.Draining {
			state = "draining"
		}
		rows = append(rows, []string{
			n.stats.Node, state, fmt.Sprintf("%d/%d", n.stats.InFlight, n.stats.Capacity), strconv.Itoa(n.stats.Waiting),
			strconv.Itoa(n.stats.Debt), rate(n.calls), rate(n.errors), rate(n.refused),
		})
	}
	err := p.table([]string{"NODE", "STATE", "IN FLIGHT", "BACKLOG", "DEBT", "CALLS/S", "ERRORS/S", "REFUSED/S"}, rows)
	if err == nil {
		err = p.line("")
	}
	if err != nil {
		return err
	}
	rows = make([][]string, 0, len(v.modules))
	for _, m := range v.modules {
		rows = append(rows, []string{
			m.id, strconv.Itoa(m.hosts), strconv.Itoa(m.inFlight), strconv.Itoa(m.waiting), rate(m.calls), rate(m.errors),
			took(m.latency, .5), took(m.latency, .99),
		})
	}
	err = p.table([]string{"MODULE", "NODES", "IN FLIGHT", "BACKLOG", "CALLS/S", "ERRORS/S", "P50", "P99"}, rows)
	if err == nil && v.left > 0 && p.terminal {
		err = p.line("%d more; --limit 0 shows all", v.left)
	}
	return err
}

func rate(perSecond float64) string { return strconv.FormatFloat(perSecond, 'f', 1, 64) }

// took is a latency for people; "-" without calls.
func took(buckets []contextwire.LatencyBucket, q float64) string {
	d := contextwire.Quantile(buckets, q)
	switch {
	case d == 0 && len(buckets) == 0:
		return "-"
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// errNoStats is a router that does not know the question.
var errNoStats = errors.New("the router's answer holds no stats")
