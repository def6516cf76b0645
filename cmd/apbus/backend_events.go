package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

const eventStreamType = "text/event-stream"

// callByEvents makes a call over the router's event stream.
func (b *httpBackend) callByEvents(ctx context.Context, a ask, r *callRequest) (*callResult, error) {
	res, err := b.open(ctx, a, eventStreamType)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";"); kind != eventStreamType {
		doc, _, err := b.read(ctx, res)
		if err == nil {
			err = module.Errorf(module.CodeBusBadMessage, "%s answered a stream with one document of %d keys; is it an Apbus router?", b.base.Redacted(), len(doc))
		}
		return failedResult(err), err
	}
	defer func() { _ = res.Body.Close() }() // everything needed has been read
	result := &callResult{}
	events := newEventReader(res.Body)
	for {
		e, err := events.next()
		switch {
		case err != nil && ctx.Err() != nil:
			return result, context.Cause(ctx)
		case err != nil && module.AsError(err) == nil:
			return result, module.Errorf(module.CodeBusStreamTruncated,
				"the connection to the router ended after %d chunks, before the call did: %w", result.chunks, err)
		case err != nil:
			return result, err
		}
		if over, err := result.take(e, r); over || err != nil {
			return result, err
		}
	}
}

// take handles one event of a call; over says that it was the last. Events of other
// names are of newer routers.
func (c *callResult) take(e *event, r *callRequest) (over bool, err error) {
	switch e.name {
	case "progress":
		if r.progress != nil {
			r.progress(progressOf(e.data))
		}
	case "data":
		if e.id != strconv.FormatUint(c.chunks, 10) {
			return true, module.Errorf(module.CodeBusStreamTruncated, "chunk %s came where chunk %d was due", printable(e.id), c.chunks)
		}
		if r.chunk != nil {
			err = r.chunk(c.chunks, e.data)
		}
		c.chunks++
		return false, err
	case "trace":
		if r.trace {
			c.trace = e.data
		}
	case "end":
		if e.id != strconv.FormatUint(c.chunks, 10) {
			return true, module.Errorf(module.CodeBusStreamTruncated, "%d chunks of %s came", c.chunks, printable(e.id))
		}
		c.output = e.data
		return true, nil
	case "error":
		failure, _ := e.data["error"].(map[string]any)
		coded, ok := module.ErrorFromMap(failure)
		if !ok {
			return true, module.Errorf(module.CodeBusBadMessage, "the router reports a failure that is not understood")
		}
		return true, coded
	}
	return false, nil
}

func progressOf(data map[string]any) module.ProgressReport {
	note, _ := data["note"].(string)
	return module.ProgressReport{Done: number(data["done"]), Total: number(data["total"]), Note: note}
}

// number reads any number of the JSON data model, 0 for all else.
func number(v any) float64 {
	switch n := v.(type) {
	case float64:
		return n
	case int64:
		return float64(n)
	case uint64:
		return float64(n)
	}
	return 0
}

// event is one Server-Sent Event whose data is a JSON object.
type event struct {
	name, id string
	data     map[string]any
}

// eventReader reads events. Comments are left out.
type eventReader struct {
	r     *bufio.Reader
	limit int
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(r, 32<<10), limit: answerLimits().MaxBody}
}

// next returns the next event that has data. The end of the stream is io.EOF, in
// the middle of an event too.
func (s *eventReader) next() (*event, error) {
	e := &event{}
	var data []byte
	for {
		line, err := s.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if data == nil {
				e = &event{} // a comment, or an event without data, which counts for nothing
				continue
			}
			if e.data, err = contextwire.DecodeMap(contextwire.JSON, data, answerLimits()); err != nil {
				return nil, module.Wrap(module.CodeBusBadMessage, err, fmt.Sprintf("the router's event %q is not understood", printable(e.name)))
			}
			return e, nil
		}
		field, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.name = value
		case "id":
			e.id = value
		case "data":
			if data != nil {
				data = append(data, '\n')
			}
			if data = append(data, value...); len(data) > s.limit {
				return nil, contextwire.TooLarge(int64(len(data)), int64(s.limit))
			}
		}
	}
}

// line reads one line without its end.
func (s *eventReader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := s.r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			line = line[:len(line)-1]
			if n := len(line); n > 0 && line[n-1] == '\r' {
				line = line[:n-1]
			}
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > s.limit:
			return nil, contextwire.TooLarge(int64(len(line)), int64(s.limit))
		}
	}
}
