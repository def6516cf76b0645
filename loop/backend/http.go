package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/loop"
)

// HTTPOptions configure an [HTTP] backend. BaseURL and Model are required.
type HTTPOptions struct {
	// BaseURL is that of an OpenAI-compatible API, such as https://host/v1; requests
	// go to <BaseURL>/chat/completions.
	BaseURL string
	Model   string
	// Key is sent as a bearer token, when not empty.
	Key string
	// Timeout bounds one request, default [DefaultTimeout].
	Timeout time.Duration
	// Transport is http.DefaultTransport when nil.
	Transport http.RoundTripper
}

// maxHTTPBody bounds the body of an answer; what it holds is bounded further by the
// engine.
const maxHTTPBody = 10 << 20

// HTTP is a model behind an OpenAI-compatible API. The instructions become the
// system message, everything else the user message. It asks for the schema of the
// operation, and for less when the provider refuses that. It is safe for concurrent
// use.
type HTTP struct {
	endpoint
	// level is how much of structured output the provider is asked for.
	level atomic.Int32
}

var _ loop.Backend = (*HTTP)(nil)

const (
	levelSchema = iota // response_format json_schema, temperature 0
	levelJSON          // response_format json_object
	levelPlain         // neither
)

// NewHTTP makes the backend. It makes no request: the probe is answered here.
func NewHTTP(o HTTPOptions) (*HTTP, error) {
	e, err := newEndpoint(o, "/chat/completions")
	if err != nil {
		return nil, err
	}
	return &HTTP{endpoint: e}, nil
}

// endpoint is one operation of an OpenAI-compatible API.
type endpoint struct {
	o      HTTPOptions
	url    string
	client *http.Client
}

func newEndpoint(o HTTPOptions, path string) (endpoint, error) {
	u, err := url.Parse(o.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return endpoint{}, failed("the base URL of the model is not usable", nil)
	}
	if o.Model == "" {
		return endpoint{}, failed("a model must be named", nil)
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return endpoint{
		o: o, url: strings.TrimRight(o.BaseURL, "/") + path,
		client: &http.Client{
			Transport: o.Transport,
			// A redirect would carry the request, and maybe the key, to somebody else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Model returns the name of the model.
func (h *HTTP) Model() string { return h.o.Model }

// errRefused says that the provider refused the form of the request.
var errRefused = errors.New("the provider refused the request")

// Complete makes one request, and with less structure again when the provider
// refuses the form. The error, LOOP_BACKEND, never holds the key or what was said.
func (h *HTTP) Complete(ctx context.Context, request string) (string, error) {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal([]byte(request), &parts); err != nil {
		return "", failed("the request is not JSON", err)
	}
	var op, instructions string
	if json.Unmarshal(parts["op"], &op) != nil {
		return "", failed("the request names no operation", nil)
	}
	if op == loop.OpProbe {
		answer, err := json.Marshal(map[string]string{"model": h.o.Model})
		return string(answer), err
	}
	if json.Unmarshal(parts["instructions"], &instructions) != nil {
		return "", failed("the request has no instructions", nil)
	}
	delete(parts, "instructions")
	user, err := marshal(parts)
	if err != nil {
		return "", failed("the request cannot be encoded", err)
	}
	ctx, stop := context.WithTimeoutCause(ctx, h.o.Timeout, errors.New("timed out"))
	defer stop()
	for {
		level := h.level.Load()
		answer, err := h.post(ctx, level, op, instructions, string(user))
		if errors.Is(err, errRefused) && level < levelPlain {
			h.level.CompareAndSwap(level, level+1)
			continue
		}
		if err != nil {
			return "", failed("the request to the model failed", err)
		}
		return answer, nil
	}
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

func (h *HTTP) post(ctx context.Context, level int32, op, system, user string) (string, error) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	body := map[string]any{"model": h.o.Model, "messages": []message{{"system", system}, {"user", user}}}
	switch level {
	case levelSchema:
		body["temperature"] = 0
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{
			"name": "loop_" + op, "strict": true, "schema": ResponseSchema(op),
		}}
	case levelJSON:
		body["response_format"] = map[string]any{"type": "json_object"}
	}
	answer, err := h.send(ctx, body)
	if err != nil {
		return "", err
	}
	return content(answer)
}

// send posts a body and returns the answer.
func (e *endpoint) send(ctx context.Context, body any) ([]byte, error) {
	raw, err := marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if e.o.Key != "" {
		req.Header.Set("Authorization", "Bearer "+e.o.Key)
	}
	res, err := e.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("reach the model: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxHTTPBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(answer) > maxHTTPBody:
		return nil, errTooLarge
	case res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusUnprocessableEntity:
		return nil, errRefused
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the provider answered with status %d", res.StatusCode)
	}
	return answer, nil
}

// content is the text of the first choice.
func content(answer []byte) (string, error) {
	var reply struct {
		Choices []struct {
			FinishReason string `json:"finish_reason"`
			Message      struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	switch {
	case len(reply.Choices) == 0:
		return "", errors.New("the answer has no choice")
	case reply.Choices[0].FinishReason == "length":
		return "", errTooLarge
	}
	return reply.Choices[0].Message.Content, nil
}
