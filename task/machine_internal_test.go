package task

import "testing"

// Whatever is over stays as it is, whoever asks the machine.
func TestRule08_FirstTerminalWriteWins(t *testing.T) {
	ru := rules{lease: 1, maxDeliveries: 1, keep: Retention{}.withDefaults()}
	m := moment{now: 10, number: 10}
	for _, s := range []Status{Completed, Failed, Cancelled} {
		r := &Record{Status: s, SubmittedAt: 1, CompletedAt: 5, Number: 5, Timeouts: Timeouts{TotalMS: 1}}
		if ru.cancel(r, m, CancelRequest{By: "ann"}) || ru.tick(r, moment{now: 1e12, number: 11}, 0, true) || ru.decide(r, m, WakeAsk{Decision: DecisionApproved}) {
			t.Errorf("%s is changed", s)
		}
		if r.Status != s || r.CompletedAt != 5 || r.Number != 5 || r.CancelRequested != nil || len(r.Timeline) != 0 {
			t.Errorf("%s became %+v", s, r)
		}
	}
}
