package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/apbus/apbus/cancel"
	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/internal/settings"
	"github.com/apbus/apbus/module"
)

// httpBackend speaks to a router.
type httpBackend struct {
	base   *url.URL
	token  string
	agent  string
	client *http.Client
}

var _ backend = (*httpBackend)(nil)

// answerLimits bound what a router may answer.
func answerLimits() contextwire.Limits {
	return contextwire.Limits{MaxBody: 256 << 20, MaxElements: 16_000_000}
}

func newHTTPBackend(router, token, version string) (*httpBackend, error) {
	base, err := url.Parse(router)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, settings.Usagef("--router: want a URL such as http://127.0.0.1:8420")
	}
	return &httpBackend{
		base: base, token: token, agent: "apbus/" + version,
		client: &http.Client{
			Transport: http.DefaultTransport.(*http.Transport).Clone(),
			// A redirect would carry inputs and the token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close gives the connections back.
func (b *httpBackend) Close() { b.client.CloseIdleConnections() }

// ask is one request of the API.
type ask struct {
	method string
	path   []string
	query  url.Values
	header http.Header
	body   io.Reader
	size   int64 // of body, -1 when unknown
}

// askFirst is the size from which the router is asked whether it takes a body
// before it is sent.
const askFirst = 1 << 20

// send returns the decoded answer, a map for every 2xx status, and the coded
// error of every other.
func (b *httpBackend) send(ctx context.Context, a ask) (map[string]any, http.Header, error) {
	res, err := b.open(ctx, a, string(contextwire.JSON)) //nolint:bodyclose // read closes it
	if err != nil {
		return nil, nil, err
	}
	return b.read(ctx, res)
}

// open makes a request and returns the answer, whose body is to be closed.
func (b *httpBackend) open(ctx context.Context, a ask, accept string) (*http.Response, error) {
	target := b.base.JoinPath(a.path...)
	target.RawQuery = a.query.Encode()
	req, err := http.NewRequestWithContext(ctx, a.method, target.String(), a.body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	if a.header != nil {
		req.Header = a.header
	}
	if a.body != nil {
		req.ContentLength = a.size
		if a.size < 0 || a.size > askFirst {
			req.Header.Set("Expect", "100-continue")
		}
		req.Header.Set("Content-Type", string(contextwire.JSON))
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", b.agent)
	if b.token != "" {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	res, err := b.client.Do(req)
	if err != nil {
		return nil, b.unreachable(ctx, err)
	}
	return res, nil
}

// read reads an answer that is one document.
func (b *httpBackend) read(ctx context.Context, res *http.Response) (map[string]any, http.Header, error) {
	defer func() { _ = res.Body.Close() }() // everything needed has been read
	limits := answerLimits()
	raw, err := io.ReadAll(io.LimitReader(res.Body, int64(limits.MaxBody)+1))
	if err != nil {
		return nil, nil, b.unreachable(ctx, err)
	}
	doc, err := contextwire.DecodeMap(contextwire.JSON, raw, limits)
	failure, _ := doc["error"].(map[string]any)
	coded, isError := module.ErrorFromMap(failure)
	// A call that waits for an approval is an error with status 202.
	success := res.StatusCode >= 200 && res.StatusCode < 300 && (res.StatusCode != http.StatusAccepted || !isError)
	if success {
		if err != nil {
			return nil, nil, module.Wrap(module.CodeBusBadMessage, err,
				"the answer of "+b.base.Redacted()+" is not understood; is it an Apbus router?")
		}
		return doc, res.Header, nil
	}
	if isError {
		trace, _ := doc["trace"].(map[string]any)
		return nil, res.Header, &answerError{status: res.StatusCode, coded: coded, trace: trace}
	}
	return nil, res.Header, &answerError{status: res.StatusCode, coded: module.Errorf(module.CodeInternal,
		"%s answered %s; is it an Apbus router?", b.base.Redacted(), res.Status)}
}

// answerError is an error that the router answered with.
type answerError struct {
	status int
	coded  *module.Error
	trace  map[string]any // when it was asked for
}

func (e *answerError) Error() string { return e.coded.Error() }
func (e *answerError) Unwrap() error { return e.coded }

// unreachable explains a request without an answer. The cause of a transport
// error never holds the token or the body.
func (b *httpBackend) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var op *url.Error
	if errors.As(err, &op) {
		err = op.Err
	}
	return module.Errorf(module.CodeBusDisconnected, "cannot reach the router at %s: %w (make run starts one; --router or APBUS_ROUTER names another)",
		b.base.Redacted(), err)
}

// Modules lists the modules.
func (b *httpBackend) Modules(ctx context.Context) ([]map[string]any, error) {
	return b.list(ctx, "modules")
}

// Nodes lists the nodes.
func (b *httpBackend) Nodes(ctx context.Context) ([]map[string]any, error) {
	return b.list(ctx, "nodes")
}

// Stats asks the router, which asks the nodes.
func (b *httpBackend) Stats(ctx context.Context) ([]contextwire.NodeStats, error) {
	doc, _, err := b.send(ctx, ask{method: http.MethodGet, path: []string{"v1", "stats"}})
	if err != nil {
		return nil, err
	}
	list, ok := doc["nodes"].([]any)
	if !ok {
		return nil, errNoStats
	}
	out := make([]contextwire.NodeStats, 0, len(list))
	for _, item := range list {
		m, _ := item.(map[string]any)
		n, err := contextwire.NodeStatsFromMap(m)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoStats, err)
		}
		out = append(out, *n)
	}
	return out, nil
}

func (b *httpBackend) list(ctx context.Context, what string) ([]map[string]any, error) {
	doc, _, err := b.send(ctx, ask{method: http.MethodGet, path: []string{"v1", what}})
	if err != nil {
		return nil, err
	}
	list, ok := doc[what].([]any)
	if !ok {
		return nil, fmt.Errorf("the router's answer has no list of %s", what)
	}
	out := make([]map[string]any, 0, len(list))
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// Module returns one module.
func (b *httpBackend) Module(ctx context.Context, id string) (map[string]any, error) {
	doc, _, err := b.send(ctx, ask{method: http.MethodGet, path: []string{"v1", "modules", url.PathEscape(id)}})
	return doc, err
}

// Drain drains a node.
func (b *httpBackend) Drain(ctx context.Context, node string, grace time.Duration) (map[string]any, error) {
	raw, err := contextwire.Encode(contextwire.JSON, map[string]any{"grace_ms": grace.Milliseconds()})
	if err != nil {
		return nil, err
	}
	doc, _, err := b.send(ctx, ask{
		method: http.MethodPost, path: []string{"v1", "nodes", url.PathEscape(node), "drain"},
		body: bytes.NewReader(raw), size: int64(len(raw)),
	})
	return doc, err
}

// request builds the request of a call or check.
func (b *httpBackend) request(r *callRequest, verb string) (ask, error) {
	a := ask{
		method: http.MethodPost, path: []string{"v1", "modules", url.PathEscape(r.id), verb},
		header: http.Header{}, body: r.raw, size: r.size,
	}
	if r.raw == nil {
		raw, err := contextwire.EncodeCanonical(contextwire.JSON, r.inputs)
		if err != nil {
			return a, err
		}
		a.body, a.size = bytes.NewReader(raw), int64(len(raw))
	}
	if r.timeout > 0 {
		a.header.Set("Apbus-Timeout", r.timeout.String())
	}
	if r.node != "" {
		a.header.Set("Apbus-Node", r.node)
	}
	if r.trace {
		a.header.Set("Apbus-Trace", "1")
	}
	if r.approval != "" {
		a.header.Set("Apbus-Approval", r.approval)
	}
	return a, nil
}

// Call calls a module. The trace is made here, so that Ctrl-C can name what to
// cancel before the router has answered anything.
func (b *httpBackend) Call(ctx context.Context, r *callRequest) (*callResult, error) {
	carry, verb := b.callPlainly, "call"
	if r.chunk != nil || r.progress != nil {
		carry, verb = b.callByEvents, "stream"
	}
	a, err := b.request(r, verb)
	if err != nil {
		return nil, err
	}
	trace := module.NewTraceID()
	a.header.Set("Traceparent", "00-"+trace+"-"+module.NewSpanID()+"-00")

	type answer struct {
		result *callResult
		err    error
	}
	request, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abort(nil)
	answered := make(chan answer, 1)
	go func() {
		result, err := carry(request, a, r)
		answered <- answer{result, err}
	}()
	select {
	case got := <-answered:
		return got.result, got.err
	case <-ctx.Done():
	}
	notice, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), cancelLimit, errors.New("no answer to the cancel"))
	defer stop()
	result, err := b.Cancel(notice, cancel.Selector{Trace: trace}, "interrupted")
	// Closing the connection cancels the call too, should the notice be refused.
	abort(context.Cause(ctx))
	if got := <-answered; got.err == nil {
		return got.result, nil // the answer was faster
	}
	return nil, &interruptedError{result: result, err: err}
}

// callPlainly waits for the one document that is the answer.
func (b *httpBackend) callPlainly(ctx context.Context, a ask, r *callRequest) (*callResult, error) {
	doc, _, err := b.send(ctx, a)
	if err != nil {
		return failedResult(err), err
	}
	if !r.trace {
		return &callResult{output: doc}, nil
	}
	result := &callResult{}
	result.output, _ = doc["output"].(map[string]any)
	result.trace, _ = doc["trace"].(map[string]any)
	return result, nil
}

// failedResult is what there is beside an error: its trace, or nothing.
func failedResult(err error) *callResult {
	if answer, ok := errors.AsType[*answerError](err); ok && answer.trace != nil {
		return &callResult{trace: answer.trace}
	}
	return nil
}

// Start makes a detached call.
func (b *httpBackend) Start(ctx context.Context, r *callRequest) (string, error) {
	a, err := b.request(r, "call")
	if err != nil {
		return "", err
	}
	a.header.Set("Prefer", "respond-async")
	doc, header, err := b.send(ctx, a)
	if err != nil {
		return "", err
	}
	if call, _ := doc["call"].(string); call != "" {
		return call, nil
	}
	if call := header.Get("Apbus-Call"); call != "" {
		return call, nil
	}
	return "", errors.New("the router did not tell the call's ID")
}

// Check checks a call.
func (b *httpBackend) Check(ctx context.Context, r *callRequest) (*module.PreflightResult, error) {
	a, err := b.request(r, "check")
	if err != nil {
		return nil, err
	}
	doc, _, err := b.send(ctx, a)
	if err != nil {
		return nil, err
	}
	return module.PreflightFromMap(doc)
}

// Cancel stops calls.
func (b *httpBackend) Cancel(ctx context.Context, sel cancel.Selector, reason string) (*cancelled, error) {
	a := ask{method: http.MethodDelete, path: []string{"v1", "calls"}, query: url.Values{}}
	switch {
	case sel.Call != "":
		a.path = append(a.path, url.PathEscape(sel.Call))
	case sel.Root != "":
		a.query.Set("root", sel.Root)
	default:
		a.query.Set("trace", sel.Trace)
	}
	if reason != "" {
		a.query.Set("reason", reason)
	}
	doc, _, err := b.send(ctx, a)
	var answer *answerError
	if errors.As(err, &answer) && answer.status == http.StatusNotFound {
		return &cancelled{state: stateUnknown}, nil
	}
	if err != nil {
		return nil, err
	}
	c := &cancelled{nodes: texts(doc["nodes"]), calls: texts(doc["calls"])}
	c.state, _ = doc["state"].(string)
	return c, nil
}

// texts reads a list of strings.
func texts(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, e := range list {
		if s, ok := e.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

// text reads one string, "" when it is something else.
func text(v any) string {
	s, _ := v.(string)
	return strings.TrimSpace(s)
}
