package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// loopDemo makes what the loop learns from, and a pass over it.
type loopDemo struct {
	caller, reviewer *httpBackend
	p                *printer
}

// runLoopDemo makes failing, slow, denied and retried calls over both nodes, has a pass
// made in which a recorded model takes part, and shows what waits for a person.
func runLoopDemo(ctx context.Context, p *printer, apbus, api string, tokens *devTokens, version string) error {
	caller, err := newHTTPBackend(api, tokens.caller, version)
	if err != nil {
		return err
	}
	defer caller.Close()
	reviewer, err := newHTTPBackend(api, tokens.reviewer, version)
	if err != nil {
		return err
	}
	defer reviewer.Close()
	d := &loopDemo{caller, reviewer, p}
	if err := p.line("making calls that fail, are slow, are denied and are tried again …"); err != nil {
		return err
	}
	d.calls(ctx)
	n, err := d.settled(ctx)
	if err != nil {
		return err
	}
	if err := p.line("%d records of evidence; a pass of the loop, with a recorded model:\n", n); err != nil {
		return err
	}
	// The caller has the pass made, so that the reviewer may approve what comes of it.
	doc, err := caller.tell(ctx, http.MethodPost, []string{loopIs, "run"}, nil, map[string]any{"full_sweep": true})
	if err != nil {
		return err
	}
	if err := showPass(p, doc); err != nil {
		return err
	}
	return d.pending(ctx, apbus, api, tokens)
}

// calls makes the calls, some at a time. How they end is what they are for.
func (d *loopDemo) calls(ctx context.Context) {
	type one struct {
		id     string
		inputs map[string]any
		limit  time.Duration
	}
	var all []one
	for i := range 12 {
		key := "demo-" + strconv.Itoa(i)
		all = append(all,
			one{"demo.fail", map[string]any{"code": "SHOP_CLOSED", "message": "the shop is closed, order " + key}, 0},
			one{"demo.whoami", map[string]any{}, 0},
			// Longer than it may take.
			one{"demo.sleep", map[string]any{"ms": int64(2000)}, 60 * time.Millisecond},
			one{"demo.sleep", map[string]any{"ms": int64(20)}, 0},
			// Crosses to the other node and back.
			one{"near.chain", map[string]any{"path": []any{"far.chain", "near.whoami"}}, 0},
			// Denied: the rules of the second node let nobody from outside in here.
			one{"far.whoami", map[string]any{}, 0},
			// No such module.
			one{"text.wordcounts", map[string]any{"text": "how many words"}, 0},
			// The same again until it works, or not even then: each node counts for itself, and
			// at least three of the four fail whoever gets them.
			one{"demo.fail", map[string]any{"code": "BUSY", "retryable": true, "times": int64(3), "key": key}, 0},
			one{"demo.fail", map[string]any{"code": "BUSY", "retryable": true, "times": int64(3), "key": key}, 0},
			one{"demo.fail", map[string]any{"code": "BUSY", "retryable": true, "times": int64(3), "key": key}, 0},
			one{"demo.fail", map[string]any{"code": "BUSY", "retryable": true, "times": int64(3), "key": key}, 0},
		)
	}
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for _, c := range all {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			_, _ = d.caller.Call(ctx, &callRequest{id: c.id, inputs: c.inputs, timeout: c.limit, size: -1}) // see above
		})
	}
	wg.Wait()
}

// settled waits until the evidence of the calls is kept, and says how much there is.
func (d *loopDemo) settled(ctx context.Context) (int, error) {
	const (
		enough  = 100
		tries   = 50
		between = 100 * time.Millisecond
	)
	n := 0
	for range tries {
		doc, err := d.caller.tell(ctx, http.MethodGet, []string{"evidence"}, url.Values{"limit": {"1000"}}, nil)
		if err != nil {
			return 0, err
		}
		if n = len(listOf(doc["evidence"])); n >= enough {
			break
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(between):
		}
	}
	return n, nil
}

// pending shows what waits, and how to go on.
func (d *loopDemo) pending(ctx context.Context, apbus, api string, tokens *devTokens) error {
	doc, err := d.reviewer.tell(ctx, http.MethodGet, []string{recsAre}, url.Values{"state": {"pending"}}, nil)
	if err != nil {
		return err
	}
	if err := d.p.line("\n%s", d.p.bold("waiting for a person")); err != nil {
		return err
	}
	var rows [][]string
	first := "HASH"
	for _, item := range listOf(doc[recsAre]) {
		r, _ := item.(map[string]any)
		hash := text(r["hash"])
		hash = hash[:min(len(hash), shortHash)]
		if first == "HASH" && r["executable"] == true {
			first = hash
		}
		rows = append(rows, []string{hash, text(r["severity"]), proposalOf(r), text(r["target"]), text(r["summary"])})
	}
	if len(rows) == 0 {
		return fmt.Errorf("the pass proposed nothing")
	}
	if err := d.p.table([]string{"RECOMMENDATION", "SEVERITY", "KIND", "TARGET", "SUMMARY"}, rows); err != nil {
		return err
	}
	return d.p.line(`
go on with:
  export APBUS_ROUTER=%s APBUS_TOKEN=$(cat %s)
  %[3]s recs show %[4]s
  %[3]s recs approve %[4]s --because "I have looked at it"
  %[3]s recs apply %[4]s --because "try it for a week"
  %[3]s recs rollback %[4]s --because "it did not help"`, api, tokens.reviewerFile, apbus, first)
}

// demoFlags are what the demonstration of the loop adds to the flags of the programs.
type demoFlags struct{ router, node []string }

// demoRules deny what the demonstration wants denied.
const demoRules = `# Rules of the demonstration of the loop: nobody from outside calls far.whoami.
default_effect: allow
rules:
  - {callers: ["@external"], targets: ["far.whoami"], effect: deny}
`

func (c *devCmd) demoFlags(bin string) (demoFlags, error) {
	if !c.DemoLoop {
		return demoFlags{}, nil
	}
	rules := filepath.Join(c.Data, "demo-acl.yaml")
	if err := writePrivate(rules, demoRules); err != nil {
		return demoFlags{}, err
	}
	return demoFlags{
		router: []string{"--loop-every", "0", "--llm-cmd", filepath.Join(bin, "apbus") + " demo-model"},
		node:   []string{"--acl", rules},
	}, nil
}
