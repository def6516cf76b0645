package backend

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/apbus/apbus/loop"
)

// Exchange is one line of a recording.
type Exchange struct {
	Seq           int    `json:"seq"`
	Op            string `json:"op"`
	RequestSHA256 string `json:"request_sha256"`
	Request       string `json:"request"`
	Response      string `json:"response,omitempty"`
	// Error is set for a request that failed; it says no more than that.
	Error     string `json:"error,omitempty"`
	Model     string `json:"model"`
	StartedMS int64  `json:"started_ms"`
	DurMS     int64  `json:"dur_ms"`
}

func opOf(request string) string {
	var r struct {
		Op string `json:"op"`
	}
	if json.Unmarshal([]byte(request), &r) != nil {
		return ""
	}
	return r.Op
}

func digest(request string) string {
	sum := sha256.Sum256([]byte(request))
	return hex.EncodeToString(sum[:])
}

// RecorderOptions configure a [Recorder].
type RecorderOptions struct {
	// Redact changes requests and responses before they are written, nil for not. The
	// digest is that of the request as it was sent, so that a replay finds it.
	Redact func(string) string
	// Now is time.Now when nil.
	Now func() time.Time
}

// Recorder writes each exchange as a line of JSON. A line that cannot be written
// fails the exchange: a recording with holes is worth nothing. It is safe for
// concurrent use.
type Recorder struct {
	next loop.Backend
	o    RecorderOptions

	mu  sync.Mutex
	w   io.Writer
	seq int
}

var _ loop.Backend = (*Recorder)(nil)

// NewRecorder records what goes through next into w.
func NewRecorder(next loop.Backend, w io.Writer, o RecorderOptions) *Recorder {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Redact == nil {
		o.Redact = func(s string) string { return s }
	}
	return &Recorder{next: next, o: o, w: w}
}

// Model returns the name of the recorded model.
func (r *Recorder) Model() string { return r.next.Model() }

// Complete passes the request on and records it.
func (r *Recorder) Complete(ctx context.Context, request string) (string, error) {
	started := r.o.Now()
	response, err := r.next.Complete(ctx, request)
	x := Exchange{
		Op: opOf(request), RequestSHA256: digest(request), Request: r.o.Redact(request), Response: r.o.Redact(response),
		Model: r.next.Model(), StartedMS: started.UnixMilli(), DurMS: r.o.Now().Sub(started).Milliseconds(),
	}
	if err != nil {
		x.Response, x.Error = "", "failed"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	x.Seq = r.seq
	line, encErr := marshal(x)
	if encErr == nil {
		_, encErr = r.w.Write(append(line, '\n'))
	}
	if encErr != nil {
		return "", failed("the exchange could not be recorded", errors.Join(err, encErr))
	}
	return response, err
}

// Replayer answers from a recording, in its order: the next request must be the
// next recorded one, by operation and digest. Anything else is an error and never a
// live call. It is safe for concurrent use.
type Replayer struct {
	exchanges []Exchange

	mu   sync.Mutex
	next int
}

var _ loop.Backend = (*Replayer)(nil)

// maxRecorded is the longest line of a recording.
const maxRecorded = 4 << 20

// NewReplayer reads a recording.
func NewReplayer(recording io.Reader) (*Replayer, error) {
	lines := bufio.NewScanner(recording)
	lines.Buffer(nil, maxRecorded)
	p := &Replayer{}
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var x Exchange
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			return nil, failed("the recording cannot be read", err)
		}
		if x.Op == "" || x.RequestSHA256 == "" {
			return nil, failed(fmt.Sprintf("line %d of the recording is no exchange", len(p.exchanges)+1), nil)
		}
		p.exchanges = append(p.exchanges, x)
	}
	if err := lines.Err(); err != nil {
		return nil, failed("the recording cannot be read", err)
	}
	if len(p.exchanges) == 0 {
		return nil, failed("the recording is empty", nil)
	}
	return p, nil
}

// Model returns the name in the recording.
func (p *Replayer) Model() string { return p.exchanges[0].Model }

// Complete answers with what was recorded.
func (p *Replayer) Complete(ctx context.Context, request string) (string, error) {
	if ctx.Err() != nil {
		return "", failed("stopped", context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next >= len(p.exchanges) {
		return "", failed("the recording has ended", nil)
	}
	x := p.exchanges[p.next]
	if x.Op != opOf(request) || x.RequestSHA256 != digest(request) {
		return "", failed(fmt.Sprintf("the recording holds another request at %d", p.next+1), nil)
	}
	p.next++
	if x.Error != "" {
		return "", failed("it failed when it was recorded", nil)
	}
	return x.Response, nil
}
