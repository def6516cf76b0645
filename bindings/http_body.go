package bindings

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
)

// fault is what is wrong with an answer, fit to be shown.
type fault struct{ error }

func isFault(err error) bool { _, ok := errors.AsType[fault](err); return ok }

// limited reads no more than it may and keeps why reading failed.
type limited struct {
	from io.Reader
	left int64
	over bool
	err  error
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.over {
		return 0, errTooLarge
	}
	n, err := l.from.Read(p)
	if l.left -= int64(n); l.left < 0 {
		l.over = true
		return 0, errTooLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
	}
	return n, err
}

// whole reads one object.
func whole(body io.Reader, emit func(map[string]any) error) error {
	raw, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	doc, err := decodeObject(raw)
	if err != nil {
		return fault{err}
	}
	return emit(doc)
}

// stream reads JSON lines, or the data of Server-Sent Events; an answer of type
// application/json is one object.
func (h *httpRunner) stream(res *http.Response, body io.Reader, emit func(map[string]any) error) error {
	switch mediaType(res) {
	case "application/json":
		return whole(body, emit)
	case "text/event-stream":
		return events(body, h.Limit, emit)
	}
	return eachLine(body, h.Limit, func(line []byte) error {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			return nil
		}
		return passFault(line, emit)
	})
}

func passFault(raw []byte, emit func(map[string]any) error) error {
	doc, err := decodeObject(raw)
	if err != nil {
		return fault{err}
	}
	return emit(doc)
}

// events passes on the data of every event, the kind of event aside; several lines
// of data are one. The stream's end ends the last event only if it is complete.
func events(body io.Reader, limit int64, emit func(map[string]any) error) error {
	var data []byte
	has := false
	return eachLine(body, limit, func(line []byte) error {
		line = bytes.TrimSuffix(line, []byte("\r"))
		if len(line) == 0 {
			if !has {
				return nil
			}
			whole := data
			data, has = nil, false
			return passFault(whole, emit)
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		if string(field) != "data" {
			return nil
		}
		if has {
			data = append(data, '\n')
		}
		data, has = append(data, bytes.TrimPrefix(value, []byte(" "))...), true
		return nil
	})
}

// eachLine calls f with every line, its end left out.
func eachLine(body io.Reader, limit int64, f func(line []byte) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 64<<10), int(min(limit, 1<<30))+1)
	lines.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		if atEOF && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	})
	for lines.Scan() {
		if err := f(lines.Bytes()); err != nil {
			return err
		}
	}
	return lines.Err()
}
