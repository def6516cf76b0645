package task

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// plan is when recurring work is due: the minutes that five cron fields select on the
// clock of a time zone, or every so often.
//
// A minute that a clock skips when it is put forward is not served, one that it
// shows twice is served the first time only. Times of "@every" are multiples of the
// interval since the Unix epoch, so that they do not depend on who counts.
type plan struct {
	minute, hour, dom, month, dow uint64
	anyDOM, anyDOW                bool
	zone                          *time.Location
	every                         time.Duration
}

type cronField struct {
	name     string
	min, max int
	names    string // of the values from min on
}

const (
	monthNames = "jan feb mar apr may jun jul aug sep oct nov dec"
	dayNames   = "sun mon tue wed thu fri sat"
)

const minEvery = time.Second

// maxCron is how long an expression may be in bytes: every minute by itself fits.
const maxCron = 256

// parsePlan reads a cron expression; errors are GENERAL_INVALID_INPUT.
func parsePlan(expr, zone string) (plan, error) {
	p := plan{zone: time.UTC}
	if len(expr) > maxCron {
		return p, bad("cron", "is too long")
	}
	if zone != "" {
		loc, err := time.LoadLocation(zone)
		if err != nil || zone == "Local" {
			return p, bad("time_zone", "is not known")
		}
		p.zone = loc
	}
	expr = strings.TrimSpace(expr)
	if every, ok := strings.CutPrefix(expr, "@every "); ok {
		d, err := time.ParseDuration(strings.TrimSpace(every))
		if err != nil || d < minEvery || d > maxSpan || d%time.Second != 0 {
			return p, bad("cron", "@every takes whole seconds, from 1 s to a year")
		}
		p.every = d
		return p, nil
	}
	switch expr {
	case "@hourly":
		expr = "0 * * * *"
	case "@daily", "@midnight":
		expr = "0 0 * * *"
	case "@weekly":
		expr = "0 0 * * 0"
	case "@monthly":
		expr = "0 0 1 * *"
	case "@yearly", "@annually":
		expr = "0 0 1 1 *"
	}
	fields := strings.Fields(expr)
	if len(fields) != 5 {
		return p, bad("cron", "must have five fields, or be @hourly, @daily, @weekly, @monthly, @yearly or @every")
	}
	for i, f := range []struct {
		cronField
		set *uint64
	}{
		{cronField{"minute", 0, 59, ""}, &p.minute},
		{cronField{"hour", 0, 23, ""}, &p.hour},
		{cronField{"day of month", 1, 31, ""}, &p.dom},
		{cronField{"month", 1, 12, monthNames}, &p.month},
		{cronField{"day of week", 0, 7, dayNames}, &p.dow},
	} {
		set, err := f.parse(fields[i])
		if err != nil {
			return p, bad("cron", fmt.Sprintf("has a bad %s: %v", f.name, err))
		}
		*f.set = set
	}
	if p.dow&(1<<7) != 0 { // 7 is Sunday too
		p.dow |= 1
	}
	p.dow &= 1<<7 - 1
	p.anyDOM, p.anyDOW = strings.HasPrefix(fields[2], "*"), strings.HasPrefix(fields[4], "*")
	return p, nil
}

// parse reads a list of *, n, a-b, each with an optional /step.
func (f cronField) parse(text string) (set uint64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		step := 1
		if stepped {
			if step, err = strconv.Atoi(stepText); err != nil || step < 1 || step > f.max {
				return 0, fmt.Errorf("step %q", stepText)
			}
		}
		lo, hi := f.min, f.max
		if span != "*" {
			from, to, ranged := strings.Cut(span, "-")
			if lo, err = f.value(from); err != nil {
				return 0, err
			}
			switch {
			case ranged:
				if hi, err = f.value(to); err != nil {
					return 0, err
				}
			case !stepped:
				hi = lo
			}
			if hi < lo {
				return 0, fmt.Errorf("range %q runs backwards", span)
			}
		}
		for v := lo; v <= hi; v += step {
			set |= 1 << v
		}
	}
	return set, nil
}

func (f cronField) value(text string) (int, error) {
	for i, name := range strings.Fields(f.names) {
		if strings.EqualFold(text, name) {
			return i + f.min, nil
		}
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < f.min || v > f.max || strings.HasPrefix(text, "+") {
		return 0, fmt.Errorf("value %q", text)
	}
	return v, nil
}

// next returns the first time after t, the zero time when there is none in the next
// years.
func (p plan) next(t time.Time) time.Time {
	if p.every > 0 {
		n := t.UnixNano()/int64(p.every) + 1
		return time.Unix(0, n*int64(p.every)).UTC()
	}
	local := t.In(p.zone)
	day := time.Date(local.Year(), local.Month(), local.Day(), 12, 0, 0, 0, time.UTC) // a date, not a time
	for range 366 * 9 {                                                               // leap days are up to eight years apart
		if p.onDay(day) {
			if at := p.inDay(day, t); !at.IsZero() {
				return at
			}
		} else if p.month&(1<<uint(day.Month())) == 0 {
			day = time.Date(day.Year(), day.Month()+1, 1, 12, 0, 0, 0, time.UTC)
			continue
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}
}

// onDay applies the rule of cron: when both kinds of day are restricted, one of them
// is enough.
func (p plan) onDay(d time.Time) bool {
	if p.month&(1<<uint(d.Month())) == 0 {
		return false
	}
	dom, dow := p.dom&(1<<uint(d.Day())) != 0, p.dow&(1<<uint(d.Weekday())) != 0
	if p.anyDOM || p.anyDOW {
		return dom && dow
	}
	return dom || dow
}

// inDay returns the first time of a date after t, zero when there is none.
func (p plan) inDay(d, t time.Time) time.Time {
	for hours := p.hour; hours != 0; hours &= hours - 1 {
		h := bits.TrailingZeros64(hours)
		for minutes := p.minute; minutes != 0; minutes &= minutes - 1 {
			m := bits.TrailingZeros64(minutes)
			at := time.Date(d.Year(), d.Month(), d.Day(), h, m, 0, 0, p.zone)
			if at.Hour() != h || at.Minute() != m { // the clock skips it
				continue
			}
			if at.After(t) {
				return at.UTC()
			}
		}
	}
	return time.Time{}
}

// missed counts the times from first on, which is one of them, up to now, and returns
// the last of them. Beyond a million it stops counting one by one.
func (p plan) missed(first, now time.Time) (n int, last time.Time) {
	if p.every > 0 && now.After(first) {
		n = int(now.Sub(first) / p.every)
		return n + 1, first.Add(time.Duration(n) * p.every)
	}
	n, last = 1, first
	for n < 1_000_000 {
		at := p.next(last)
		if at.IsZero() || at.After(now) {
			break
		}
		n, last = n+1, at
	}
	return n, last
}
