package bindings

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
)

// errNotJSON ends a stream at a line that is no JSON object.
var errNotJSON = errors.New("not JSON")

var errTooLarge = errors.New("too large")

// output takes what a command writes to standard output: as a whole, or line by
// line, no faster than the reader takes the lines.
type output struct {
	limit int64
	lines chan []byte // nil unless it streams
	end   func()      // ends the command
	gone  chan struct{}

	once  sync.Once
	mu    sync.Mutex
	taken int64
	over  bool
	buf   bytes.Buffer // all, or of a stream the line that is not complete
	last  []byte       // the last complete line of a stream
}

func newOutput(limit int64, stream bool, end func()) *output {
	o := &output{limit: limit, end: end, gone: make(chan struct{})}
	if stream {
		o.lines = make(chan []byte)
	}
	return o
}

// Write takes output until there is too much of it, or nobody wants it any more.
// The lines before that count.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	room := o.limit - o.taken
	over := int64(len(p)) > room
	if over {
		p = p[:room]
	}
	o.taken += int64(len(p))
	o.buf.Write(p)
	o.mu.Unlock()
	for o.lines != nil {
		line, ok := o.line()
		if !ok {
			break
		}
		select {
		case o.lines <- line:
		case <-o.gone:
			return 0, errLeft
		}
	}
	if !over {
		return len(p), nil
	}
	o.mu.Lock()
	o.over = true
	o.mu.Unlock()
	o.end()
	return 0, errTooLarge
}

// line takes a complete line out of the buffer; empty ones are left out.
func (o *output) line() ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		i := bytes.IndexByte(o.buf.Bytes(), '\n')
		if i < 0 {
			return nil, false
		}
		line := bytes.Clone(bytes.TrimSpace(o.buf.Next(i + 1)))
		if len(line) > 0 {
			return line, true
		}
	}
}

// each passes the lines of a stream to emit until the command has ended. A line
// that holds nothing but an error is kept for rest, since the command is about to
// fail.
func (o *output) each(emit func(map[string]any) error) error {
	defer o.once.Do(func() { close(o.gone) })
	if o.lines == nil {
		return nil
	}
	for line := range o.lines {
		o.mu.Lock()
		held := o.last
		o.last = nil
		if isError(line) {
			o.last = line
		}
		o.mu.Unlock()
		if held != nil { // it was output after all
			if err := pass(held, emit); err != nil {
				return err
			}
		}
		if isError(line) {
			continue
		}
		if err := pass(line, emit); err != nil {
			return err
		}
	}
	return nil
}

// isError reports whether a line may be the error of a command that fails.
func isError(line []byte) bool { return bytes.HasPrefix(line, []byte(`{"error"`)) }

func pass(line []byte, emit func(map[string]any) error) error {
	doc, err := decodeObject(line)
	if err != nil {
		return errNotJSON
	}
	return emit(doc)
}

// close ends the lines; a last one without a line break counts.
func (o *output) close() {
	if o.lines == nil {
		return
	}
	o.mu.Lock()
	line := bytes.Clone(bytes.TrimSpace(o.buf.Bytes()))
	if o.over {
		line = nil
	}
	o.buf.Reset()
	o.mu.Unlock()
	if len(line) > 0 {
		select {
		case o.lines <- line:
		case <-o.gone:
		}
	}
	close(o.lines)
}

func (o *output) tooLarge() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// rest is what each has not passed on: all, or the error line of a stream.
func (o *output) rest() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lines != nil {
		return o.last
	}
	return o.buf.Bytes()
}

// Bounds of what one run may write into the log.
const (
	maxLogLine  = 4 << 10
	maxLogLines = 1000
)

// lineLog writes standard error to the log, a record for each line.
type lineLog struct {
	log *slog.Logger
	c   *call

	line  []byte
	lines int
	cut   bool // the rest of the line is dropped
}

// Write takes everything and never fails.
func (l *lineLog) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		part := rest
		if i >= 0 {
			part = rest[:i]
		}
		if room := maxLogLine - len(l.line); len(part) > room {
			part, l.cut = part[:max(room, 0)], true
		}
		l.line = append(l.line, part...)
		if i < 0 {
			break
		}
		l.flush()
		rest = rest[i+1:]
	}
	return len(p), nil
}

// flush writes the line that is there, complete or not.
func (l *lineLog) flush() {
	text := strings.ToValidUTF8(strings.TrimRight(string(l.line), "\r"), "\uFFFD")
	cut := l.cut
	l.line, l.cut = l.line[:0], false
	if text == "" {
		return
	}
	if l.lines++; l.lines > maxLogLines {
		return
	}
	ctx := context.WithoutCancel(l.c.ctx)
	l.log.LogAttrs(ctx, slog.LevelInfo, "command said", l.c.attrs(slog.String("line", text), slog.Bool("cut", cut))...)
	if l.lines == maxLogLines {
		l.log.LogAttrs(ctx, slog.LevelWarn, "command says too much, the rest is dropped", l.c.attrs()...)
	}
}
