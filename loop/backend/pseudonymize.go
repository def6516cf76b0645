package backend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/apbus/apbus/loop"
)

// Pseudonymize replaces what identifies people by tokens before a request leaves,
// and puts it back in the response. It fails closed: a request that holds text that
// looks like a token, and a response with a token that was not sent, are errors. It
// is safe for concurrent use.
type Pseudonymize struct {
	next     loop.Backend
	patterns []*regexp.Regexp
}

var _ loop.Backend = (*Pseudonymize)(nil)

// DefaultPatterns match mail addresses, IPv4 addresses and runs of nine and more
// digits, as of telephones, cards and accounts.
func DefaultPatterns() []*regexp.Regexp {
	return []*regexp.Regexp{
		// A module with its version, such as a.b@1.0.0, is none.
		regexp.MustCompile(`[A-Za-z0-9._%+-]+@(?:[A-Za-z0-9-]+\.)+[A-Za-z][A-Za-z0-9-]+`),
		regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}\b`),
		regexp.MustCompile(`\+?\d(?:[ -]?\d){8,}`),
	}
}

// NewPseudonymize wraps next. patterns are [DefaultPatterns] when there are none.
func NewPseudonymize(next loop.Backend, patterns ...*regexp.Regexp) *Pseudonymize {
	if len(patterns) == 0 {
		patterns = DefaultPatterns()
	}
	return &Pseudonymize{next: next, patterns: patterns}
}

// Model returns the name of the model.
func (p *Pseudonymize) Model() string { return p.next.Model() }

// token is what stands for an identity. It has no character that JSON escapes.
var token = regexp.MustCompile(`__p(\d+)__`)

// Complete passes the request on with tokens.
func (p *Pseudonymize) Complete(ctx context.Context, request string) (string, error) {
	dec := json.NewDecoder(strings.NewReader(request))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return "", failed("the request is not JSON", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", failed("the request is more than one value", nil)
	}
	s := &secrets{patterns: p.patterns, tokens: make(map[string]string)}
	v = s.walk("", v)
	if s.clash {
		return "", failed("the request holds what looks like a pseudonym", nil)
	}
	raw, err := marshal(v)
	if err != nil {
		return "", failed("the request cannot be encoded", err)
	}
	response, err := p.next.Complete(ctx, string(raw))
	if err != nil {
		return "", err
	}
	return s.restore(response)
}

// secrets are the identities of one request, numbered as they appear.
type secrets struct {
	patterns []*regexp.Regexp
	tokens   map[string]string // by identity
	list     []string
	clash    bool
}

// walk replaces in all texts but those that the engine wrote and looks up again.
func (s *secrets) walk(key string, v any) any {
	switch v := v.(type) {
	case string:
		switch key {
		case "instructions", "op", "hash", "id", "grain_type", "analyzer", "severity":
			return v
		}
		return s.text(v)
	case []any:
		for i := range v {
			v[i] = s.walk(key, v[i])
		}
	case map[string]any:
		for _, k := range sortedKeys(v) {
			v[k] = s.walk(k, v[k])
		}
	}
	return v
}

func (s *secrets) text(text string) string {
	s.clash = s.clash || token.MatchString(text)
	for _, pattern := range s.patterns {
		text = pattern.ReplaceAllStringFunc(text, func(identity string) string {
			if token.MatchString(identity) {
				return identity // made by a pattern before
			}
			t, ok := s.tokens[identity]
			if !ok {
				s.list = append(s.list, identity)
				t = fmt.Sprintf("__p%d__", len(s.list))
				s.tokens[identity] = t
			}
			return t
		})
	}
	return text
}

// restore puts the identities back, escaped as JSON text.
func (s *secrets) restore(response string) (string, error) {
	unknown := false
	out := token.ReplaceAllStringFunc(response, func(t string) string {
		n, err := strconv.Atoi(token.FindStringSubmatch(t)[1])
		if err != nil || n < 1 || n > len(s.list) {
			unknown = true
			return ""
		}
		raw, err := marshal(s.list[n-1])
		unknown = unknown || err != nil
		if unknown {
			return ""
		}
		return string(raw[1 : len(raw)-1])
	})
	if unknown {
		return "", failed("the response holds a pseudonym that was not sent", nil)
	}
	return out, nil
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
