package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

var _ happenings = (*httpBackend)(nil)

// followAgain is the pause before a follower comes back to a router that left, and
// followTries how often in a row it tries.
const (
	followAgain = time.Second
	followTries = 30
)

func (f evidenceFilter) values() url.Values {
	q := url.Values{}
	for key, value := range map[string]string{"module": f.module, "type": f.types, "code": f.code, "since": f.since} {
		if value != "" {
			q.Set(key, value)
		}
	}
	return q
}

// Evidence lists records.
func (b *httpBackend) Evidence(ctx context.Context, f evidenceFilter) (map[string]any, error) {
	q := f.values()
	q.Set("limit", strconv.Itoa(f.limit))
	doc, _, err := b.send(ctx, ask{method: http.MethodGet, path: []string{"v1", "evidence"}, query: q})
	return doc, err
}

// FollowEvidence follows, over a restart of the router too: it comes back with the
// last sequence that it has.
func (b *httpBackend) FollowEvidence(ctx context.Context, f evidenceFilter, after string, show func(map[string]any) error) error {
	q := f.values()
	q.Del("since")
	for tries := 0; ; tries++ {
		last, err := b.followOnce(ctx, q, after, show)
		if last != after {
			after, tries = last, 0
		}
		if ctx.Err() != nil {
			return nil // Ctrl-C is how following ends
		}
		var fixed *answerError
		if errors.As(err, &fixed) || (err != nil && module.CodeOf(err) != module.CodeBusDisconnected) || tries >= followTries {
			return err
		}
		pause := time.NewTimer(followAgain)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
}

// followOnce follows one connection to its end and returns the last sequence seen.
func (b *httpBackend) followOnce(ctx context.Context, q url.Values, after string, show func(map[string]any) error) (string, error) {
	res, err := b.open(ctx, ask{
		method: http.MethodGet, path: []string{"v1", "evidence"}, query: q, header: http.Header{"Last-Event-Id": {after}},
	}, eventStreamType)
	if err != nil {
		return after, err
	}
	if kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";"); kind != eventStreamType {
		_, _, err := b.read(ctx, res)
		if err == nil {
			err = module.Errorf(module.CodeBusBadMessage, "%s answered with one document where events were asked for; is it an Apbus router?", b.base.Redacted())
		}
		return after, err
	}
	defer func() { _ = res.Body.Close() }() // everything needed has been read
	events := newEventReader(res.Body)
	for {
		e, err := events.next()
		if err != nil {
			if module.AsError(err) != nil {
				return after, err
			}
			return after, module.Errorf(module.CodeBusDisconnected, "the connection to the router ended: %w", err)
		}
		if e.name != "evidence" {
			continue // of a newer router
		}
		if err := show(e.data); err != nil {
			return after, fmt.Errorf("show evidence: %w", err)
		}
		after = e.id
	}
}
