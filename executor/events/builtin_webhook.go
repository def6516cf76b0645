package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"

	"github.com/apbus/apbus/module"
)

// WebhookOptions configures [Webhook].
type WebhookOptions struct {
	// Headers are sent with each request. They are never logged.
	Headers map[string]string
	// Client sends the requests, a plain one of its own when nil. Redirects are not
	// followed, whatever it says.
	Client *http.Client
}

type webhook struct {
	kind    string
	url     string
	headers map[string]string
	client  *http.Client
	body    func(module.Event) map[string]any
}

// Webhook posts each event's [Envelope] as JSON. 2xx is delivered; other answers
// below 500, redirects among them, are failures that are not tried again; 5xx, a broken connection and running out of time are tried
// again. An address that is not http or https is CONFIG_INVALID.
func Webhook(address string, o WebhookOptions) (Subscriber, error) {
	return newWebhook("webhook", address, o, Envelope)
}

// DefaultSkill is the skill that [A2A] addresses when it is given none.
const DefaultSkill = "apevo.event_receiver"

// A2AOptions configures [A2A].
type A2AOptions struct {
	// Bearer is sent as "Authorization: Bearer …" when not empty.
	Bearer string
	// Headers are sent with each request.
	Headers map[string]string
	// Skill is [DefaultSkill] when empty.
	Skill string
	// Client is as in [WebhookOptions].
	Client *http.Client
}

// A2A posts {"skillId", "event"} to an agent platform, with the delivery rules of
// [Webhook].
func A2A(platform string, o A2AOptions) (Subscriber, error) {
	headers := maps.Clone(o.Headers)
	if o.Bearer != "" {
		if headers == nil {
			headers = map[string]string{}
		}
		headers["Authorization"] = "Bearer " + o.Bearer
	}
	skill := o.Skill
	if skill == "" {
		skill = DefaultSkill
	}
	return newWebhook("a2a", platform, WebhookOptions{Headers: headers, Client: o.Client}, func(e module.Event) map[string]any {
		return map[string]any{"skillId": skill, "event": Envelope(e)}
	})
}

func newWebhook(kind, address string, o WebhookOptions, body func(module.Event) map[string]any) (Subscriber, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, module.Errorf(module.CodeConfigInvalid, "the address of a %s subscriber is not an http or https url", kind)
	}
	client := &http.Client{}
	if o.Client != nil {
		own := *o.Client
		client = &own
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &webhook{kind: kind, url: address, headers: maps.Clone(o.Headers), client: client, body: body}, nil
}

func (w *webhook) SubscriberType() string { return w.kind }

// maxAnswer is how much of an answer is read, so that the connection can be used
// again; none of it is kept.
const maxAnswer = 64 << 10

// OnEvent posts the event.
func (w *webhook) OnEvent(ctx context.Context, e module.Event) error {
	body, err := json.Marshal(w.body(e))
	if err != nil {
		return Permanent(fmt.Errorf("event has no json form: %w", err))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return Permanent(errors.New("event request could not be made")) // the cause would show the address
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range w.headers {
		req.Header.Set(k, v)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		// The address may hold a secret, so what client.Do says of it is left out.
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("post event: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // nothing of it is wanted
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	return answer(resp.StatusCode)
}

func answer(status int) error {
	switch {
	case status >= 200 && status < 300:
		return nil
	case status >= 500:
		return fmt.Errorf("post event: status %d", status)
	}
	return Permanent(fmt.Errorf("post event: status %d", status))
}
