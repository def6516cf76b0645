package bindings

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/apbus/apbus/module"
)

// httpRunner asks an endpoint for each call.
type httpRunner struct {
	httpSpec
	client *http.Client
}

// httpSpec is what the file says.
type httpSpec struct {
	Method string
	URL    string
	Header map[string]string
	Limit  int64
	Stream bool
}

func (l *loader) http(at place, desc module.Descriptor) (runner, error) {
	in, err := at.mapping([]string{"url", "method", "headers", "max_response"})
	if err != nil {
		return nil, err
	}
	r := &fieldReader{in: in}
	h := &httpRunner{httpSpec: httpSpec{
		Method: r.text("method"), URL: r.text("url"), Limit: r.size("max_response", defaultLimit),
		Stream: desc.Annotations.Streaming, Header: map[string]string{},
	}}
	if r.err != nil {
		return nil, r.err
	}
	p, ok := in["url"]
	if !ok {
		return nil, at.fault("the key url is missing")
	}
	if u, err := url.Parse(h.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, p.fault("want an http or https URL")
	} else if u.User != nil {
		return nil, p.fault("credentials belong into a header, from the environment or a file")
	}
	if h.Method == "" {
		h.Method = http.MethodPost
	}
	if !slices.Contains(methods(), h.Method) {
		return nil, in["method"].fault("want one of %s", strings.Join(methods(), ", "))
	}
	if p, ok := r.at("headers"); ok {
		set, err := l.secrets(p, headerName)
		if err != nil {
			return nil, err
		}
		for name, v := range set {
			h.Header[textproto.CanonicalMIMEHeaderKey(name)] = v
		}
	}
	h.client = &http.Client{
		// One pool for the binding, without the proxies of the environment.
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		// A redirect would carry inputs and secrets elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return h, nil
}

func methods() []string {
	return []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodGet, http.MethodDelete}
}

// headerName admits a header that the file may set; those of the transport and of
// the call are ours.
func headerName(name string) bool {
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	if slices.Contains([]string{"Content-Type", "Content-Length", "Accept", "Host", "Connection", "Transfer-Encoding", "Traceparent"}, canonical) {
		return false
	}
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune("()<>@,;:\\\"/[]?={}", r)
	})
}

// spec implements runner.
func (h *httpRunner) spec() any { return h.httpSpec }

// run implements runner.
func (h *httpRunner) run(c *call, emit func(map[string]any) error) error {
	req, err := h.request(c)
	if err != nil {
		return err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return h.broken(c)
	}
	defer func() { _ = res.Body.Close() }() // with it the connection, when there is more to come
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return h.refused(c, res)
	}
	body := &limited{from: res.Body, left: h.Limit}
	if h.Stream {
		err = h.stream(res, body, emit)
	} else {
		err = whole(body, emit)
	}
	switch {
	case body.over:
		return tooLarge(c, h.Limit)
	case err == nil:
		return nil
	case body.err != nil:
		return h.broken(c)
	case isFault(err):
		return failed(c, ReasonNotJSON, "its endpoint answered "+err.Error())
	}
	return err
}

// request puts the inputs into the body, or into the query of a method without
// one: texts as they are, anything else as JSON.
func (h *httpRunner) request(c *call) (*http.Request, error) {
	target := h.URL
	var body io.Reader
	if h.Method == http.MethodGet || h.Method == http.MethodDelete {
		u, err := url.Parse(target)
		if err != nil {
			return nil, failed(c, ReasonUnreachable, "its URL is malformed")
		}
		q := u.Query()
		for _, key := range slices.Sorted(maps.Keys(c.inputs)) {
			text, isText := c.inputs[key].(string)
			if !isText {
				raw, err := json.Marshal(c.inputs[key])
				if err != nil {
					return nil, module.Errorf(module.CodeModuleExecuteError, "module %s: the inputs have no JSON form", c.moduleID)
				}
				text = string(raw)
			}
			q.Set(key, text)
		}
		u.RawQuery = q.Encode()
		target = u.String()
	} else {
		raw, err := json.Marshal(c.inputs)
		if err != nil {
			return nil, module.Errorf(module.CodeModuleExecuteError, "module %s: the inputs have no JSON form", c.moduleID)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(c.ctx, h.Method, target, body)
	if err != nil {
		return nil, failed(c, ReasonUnreachable, "its request could not be made")
	}
	for name, v := range h.Header {
		req.Header.Set(name, v)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	if h.Stream {
		req.Header.Set("Accept", "application/x-ndjson, text/event-stream, application/json")
	}
	if c.traceparent != "" {
		req.Header.Set("Traceparent", c.traceparent)
	}
	if c.callID != "" {
		req.Header.Set("Apbus-Call", c.callID)
	}
	return req, nil
}

// broken is a connection that failed, or that the end of the call closed.
func (h *httpRunner) broken(c *call) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return failed(c, ReasonUnreachable, "its endpoint could not be reached, or broke off").WithRetryable(module.True)
}

// refused is an answer that says no.
func (h *httpRunner) refused(c *call, res *http.Response) error {
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return failed(c, ReasonRedirect, "its endpoint redirects, which is not followed").WithDetail("status", int64(res.StatusCode))
	}
	const most = 64 << 10
	if raw, err := io.ReadAll(io.LimitReader(res.Body, most)); err == nil {
		if own := ownError(c, raw); own != nil {
			return own
		}
	}
	e := failed(c, ReasonStatus, fmt.Sprintf("its endpoint answered with status %d", res.StatusCode)).WithDetail("status", int64(res.StatusCode))
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e = e.WithRetryable(module.True)
	}
	return e
}

func mediaType(res *http.Response) string {
	t, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}
