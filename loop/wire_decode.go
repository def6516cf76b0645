package loop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/apbus/apbus/contextwire"
)

const (
	// maxElements bounds verdicts and notes that are read of one response.
	maxElements = 256
	// maxModelDepth bounds nesting inside one element.
	maxModelDepth = 32
)

var (
	errShape    = errors.New("response has not the shape of this operation")
	errTrailing = errors.New("data after the response object")
	errTooLarge = errors.New("response_too_large")
)

// parseElements reads {"<key>": [element, …]}. The envelope is strict: one
// object, exact and unique keys, nothing behind it. Each element is decoded on
// its own, strictly too; one that cannot be read is counted and costs only itself.
// Only the first limit elements are looked at.
func parseElements[T any](raw, key string, limit int, read func(object) (T, bool)) (list []T, malformed int, err error) {
	dec, err := openEnvelope(raw)
	if err != nil {
		return nil, 0, err
	}
	seen := make(map[string]bool)
	for dec.More() {
		name, err := nextKey(dec, seen)
		if err != nil {
			return nil, 0, err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, 0, fmt.Errorf("read response: %w", err)
		}
		if name != key {
			continue
		}
		if list, malformed, err = readElements(value, limit, read); err != nil {
			return nil, 0, err
		}
	}
	if err := closeEnvelope(dec); err != nil {
		return nil, 0, err
	}
	return list, malformed, nil
}

func readElements[T any](value json.RawMessage, limit int, read func(object) (T, bool)) (list []T, malformed int, err error) {
	dec := json.NewDecoder(bytes.NewReader(value))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, 0, errShape
	}
	for n := 0; n < limit && dec.More(); n++ {
		var element json.RawMessage
		if err := dec.Decode(&element); err != nil {
			return nil, 0, fmt.Errorf("read response: %w", err)
		}
		o, err := decodeObject(element)
		if err != nil {
			malformed++
			continue
		}
		v, ok := read(o)
		if !ok {
			malformed++
			continue
		}
		list = append(list, v)
	}
	return list, malformed, nil
}

// parseObject reads a response that is one small object.
func parseObject(raw string) (object, error) {
	if len(raw) > MaxResponseBytes {
		return nil, errTooLarge
	}
	return decodeObject([]byte(strings.TrimSpace(raw)))
}

// decodeObject reads one object strictly: keys exact and unique, depth bounded,
// integers and floats apart, nothing behind it.
func decodeObject(raw []byte) (object, error) {
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{
		MaxBody: MaxResponseBytes, MaxDepth: maxModelDepth, MaxElements: 20_000,
	})
	if err != nil {
		return nil, fmt.Errorf("read element: %w", err)
	}
	return m, nil
}

func openEnvelope(raw string) (*json.Decoder, error) {
	if len(raw) > MaxResponseBytes {
		return nil, errTooLarge
	}
	if !utf8.ValidString(raw) {
		return nil, errors.New("response is not UTF-8")
	}
	dec := json.NewDecoder(strings.NewReader(strings.TrimSpace(raw)))
	t, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("read response: %w", err)
	}
	if t != json.Delim('{') {
		return nil, errShape
	}
	return dec, nil
}

func nextKey(dec *json.Decoder, seen map[string]bool) (string, error) {
	t, err := dec.Token()
	if err != nil {
		return "", fmt.Errorf("read response: %w", err)
	}
	name, ok := t.(string)
	if !ok {
		return "", errShape
	}
	if seen[name] {
		return "", errors.New("response has a key twice")
	}
	seen[name] = true
	return name, nil
}

func closeEnvelope(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil { // the closing brace
		return fmt.Errorf("read response: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errTrailing
	}
	return nil
}

// object is a decoded JSON object. Its readers leave *dst at its default when the
// key is absent and report false when the value has another type; null is
// another type.
type object map[string]any

func (o object) text(key string, dst *string) bool {
	v, there := o[key]
	if !there {
		return true
	}
	s, ok := v.(string)
	*dst = s
	return ok
}

func (o object) texts(key string, dst *[]string) bool {
	v, there := o[key]
	if !there {
		return true
	}
	list, ok := v.([]any)
	if !ok {
		return false
	}
	out := make([]string, 0, len(list))
	for _, e := range list {
		s, ok := e.(string)
		if !ok {
			return false
		}
		out = append(out, s)
	}
	*dst = out
	return true
}

func (o object) flag(key string, dst *bool) bool {
	v, there := o[key]
	if !there {
		return true
	}
	b, ok := v.(bool)
	*dst = b
	return ok
}

func (o object) index(key string, dst *int) bool {
	v, there := o[key]
	if !there {
		return true
	}
	n, ok := v.(int64)
	if !ok || n < 0 || n > 1<<20 {
		return false
	}
	*dst = int(n)
	return true
}

// share reads a number between 0 and 1; a number outside is 0, which no floor
// lets pass.
func (o object) share(key string, dst *float64) bool {
	v, there := o[key]
	if !there {
		return true
	}
	var f float64
	switch v := v.(type) {
	case int64:
		f = float64(v)
	case uint64:
		f = float64(v)
	case float64:
		f = v
	default:
		return false
	}
	if f < 0 || f > 1 {
		f = 0
	}
	*dst = f
	return true
}

func (o object) objects(key string, read func(object) bool) bool {
	v, there := o[key]
	if !there {
		return true
	}
	list, ok := v.([]any)
	if !ok {
		return false
	}
	for _, e := range list {
		m, ok := e.(map[string]any)
		if !ok || !read(m) {
			return false
		}
	}
	return true
}
