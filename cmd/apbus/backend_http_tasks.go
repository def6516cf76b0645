package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// tell makes a request of the API with a JSON body, none when it is nil.
func (b *httpBackend) tell(ctx context.Context, method string, path []string, query url.Values, body map[string]any, headers ...string) (map[string]any, error) {
	a := ask{method: method, path: []string{"v1"}, query: query, header: http.Header{}}
	for _, p := range path {
		a.path = append(a.path, url.PathEscape(p))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] != "" {
			a.header.Set(headers[i], headers[i+1])
		}
	}
	if body != nil {
		raw, err := contextwire.EncodeCanonical(contextwire.JSON, body)
		if err != nil {
			return nil, err
		}
		a.body, a.size = bytes.NewReader(raw), int64(len(raw))
	}
	doc, _, err := b.send(ctx, a)
	return doc, err
}

// waitStep is how long one request for a result waits.
const waitStep = 30 * time.Second

// TaskResult waits for the end of a task and returns its output. over is false when
// it was not over within limit, 0 being no limit; doc then is the task. Its failure is
// the error.
func (b *httpBackend) TaskResult(ctx context.Context, id string, limit time.Duration) (doc map[string]any, over bool, err error) {
	until := time.Now().Add(limit)
	for {
		wait := waitStep
		if limit > 0 {
			wait = max(min(wait, time.Until(until)), 0)
		}
		a := ask{
			method: http.MethodGet, path: []string{"v1", "tasks", url.PathEscape(id), "result"},
			query: url.Values{"wait": {wait.String()}},
		}
		res, err := b.open(ctx, a, string(contextwire.JSON)) //nolint:bodyclose // read closes it
		if err != nil {
			return nil, false, err
		}
		status := res.StatusCode
		doc, _, err := b.read(ctx, res)
		switch {
		case err != nil:
			return nil, false, err
		case status != http.StatusAccepted:
			return doc, true, nil
		case limit > 0 && !time.Now().Before(until):
			return doc, false, nil
		}
	}
}

// Times that a reader of events comes back when the connection breaks.
const (
	eventRetries = 20
	eventPause   = 500 * time.Millisecond
)

// FollowTask hands over what happens to a task until it is over. A connection that
// breaks is made again, and goes on after the last event.
func (b *httpBackend) FollowTask(ctx context.Context, id string, each func(*event) error) error {
	last := ""
	for tries := 0; ; {
		ended, heard, err := b.followTaskOnce(ctx, id, &last, each)
		if ended || ctx.Err() != nil {
			return err
		}
		if heard {
			tries = 0
		}
		var answered *answerError
		if errors.As(err, &answered) && answered.status < http.StatusInternalServerError {
			return err
		}
		if tries++; tries > eventRetries {
			return module.Wrap(module.CodeBusDisconnected, err, "the events of the task broke off")
		}
		select {
		case <-time.After(eventPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// followTaskOnce reads one connection to its end. ended says that there is nothing more to
// follow: the task is over, or each failed; heard that an event came.
func (b *httpBackend) followTaskOnce(ctx context.Context, id string, last *string, each func(*event) error) (ended, heard bool, err error) {
	a := ask{method: http.MethodGet, path: []string{"v1", "tasks", url.PathEscape(id), "events"}, header: http.Header{}}
	if *last != "" {
		a.header.Set("Last-Event-ID", *last)
	}
	res, err := b.open(ctx, a, eventStreamType)
	if err != nil {
		return false, false, err
	}
	if res.StatusCode != http.StatusOK {
		_, _, err := b.read(ctx, res)
		return false, false, err
	}
	defer func() { _ = res.Body.Close() }() // everything needed has been read
	events := newEventReader(res.Body)
	for {
		e, err := events.next()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else if module.AsError(err) == nil && !errors.Is(err, io.EOF) {
				err = b.unreachable(ctx, err)
			}
			return false, heard, err
		}
		heard = true
		if n, err := strconv.ParseInt(e.id, 10, 64); err == nil && n >= 0 {
			*last = e.id
		}
		if err := each(e); err != nil || e.name == "end" {
			return true, heard, err
		}
	}
}
