package main

import (
	"bytes"
	"context"
	"net/http"
	"net/url"

	"github.com/apbus/apbus/contextwire"
)

var _ reviews = (*httpBackend)(nil)

// Approvals lists a page of the requests.
func (b *httpBackend) Approvals(ctx context.Context, f approvalFilter) (map[string]any, error) {
	q := url.Values{}
	for key, value := range map[string]string{"state": f.state, "module": f.module, "cursor": f.cursor} {
		if value != "" {
			q.Set(key, value)
		}
	}
	doc, _, err := b.send(ctx, ask{method: http.MethodGet, path: []string{"v1", "approvals"}, query: q})
	return doc, err
}

// Approval returns one request.
func (b *httpBackend) Approval(ctx context.Context, id string) (map[string]any, error) {
	doc, _, err := b.send(ctx, ask{method: http.MethodGet, path: []string{"v1", "approvals", url.PathEscape(id)}})
	return doc, err
}

// Decide approves or rejects a request and returns it as it is then.
func (b *httpBackend) Decide(ctx context.Context, id string, approve bool, reason string) (map[string]any, error) {
	verdict := "reject"
	if approve {
		verdict = "approve"
	}
	raw, err := contextwire.EncodeCanonical(contextwire.JSON, map[string]any{"decision": verdict, "reason": reason})
	if err != nil {
		return nil, err
	}
	doc, _, err := b.send(ctx, ask{
		method: http.MethodPost, path: []string{"v1", "approvals", url.PathEscape(id), "decision"},
		body: bytes.NewReader(raw), size: int64(len(raw)),
	})
	return doc, err
}
