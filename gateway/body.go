package gateway

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// object reads the request's body as a JSON object; an empty body is an empty
// object, whatever its type is said to be. The limits of the wire apply.
func (g *Gateway) object(x *exchange) (map[string]any, error) {
	if x.r.ContentLength == 0 {
		return map[string]any{}, nil
	}
	if err := checkMediaType(x.r.Header); err != nil {
		return nil, err
	}
	body, done, err := g.readBody(x)
	if err != nil {
		return nil, err
	}
	defer done() // the values do not alias the bytes
	if len(bytes.TrimSpace(body)) == 0 {
		return map[string]any{}, nil
	}
	return contextwire.DecodeMap(contextwire.JSON, body, g.decode)
}

// checkMediaType admits JSON in UTF-8, and no type at all, which is how small
// clients send JSON.
func checkMediaType(h http.Header) error {
	unsupported := func(what string) error {
		return module.Errorf(module.CodeBusUnsupportedType, "%s is not supported; send application/json", what)
	}
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return unsupported("this content encoding")
	}
	ct := h.Get("Content-Type")
	if ct == "" {
		return nil
	}
	name, params, err := mime.ParseMediaType(ct)
	if err != nil || name != string(contextwire.JSON) {
		return unsupported("this content type")
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") {
		return unsupported("this character set")
	}
	return nil
}

// readBody reads the body up to the limit. A length that is announced and over
// the limit is refused before a byte is read. done gives the memory back to
// the budget of all bodies.
func (g *Gateway) readBody(x *exchange) (body []byte, done func(), err error) {
	limit, announced := g.limits.MaxBody, x.r.ContentLength
	if announced > limit {
		return nil, nil, tooLarge(x, announced, limit)
	}
	meter := &metered{r: x.r.Body, budget: g.bodies}
	var src io.Reader = meter
	if announced > 0 {
		if src = x.r.Body; !meter.reserve(announced) {
			return nil, nil, errBodies()
		}
	}
	defer func() {
		if err != nil {
			meter.release()
		}
	}()
	var buf bytes.Buffer
	if announced > 0 {
		// Little is believed before it arrives.
		buf.Grow(int(min(announced, 1<<20)) + bytes.MinRead)
	}
	_, err = buf.ReadFrom(io.LimitReader(src, limit+1))
	switch {
	case errors.Is(err, errNoRoom):
		x.hangUp()
		return nil, nil, errBodies()
	case int64(buf.Len()) > limit:
		return nil, nil, tooLarge(x, int64(buf.Len()), limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.hangUp()
		return nil, nil, module.Errorf(module.CodeBusBadMessage, "the body did not arrive within %s", g.limits.BodyTimeout)
	case err != nil:
		return nil, nil, module.Wrap(module.CodeBusBadMessage, err, "the body broke off")
	}
	x.readUntil(time.Time{}) // the call may take longer
	return buf.Bytes(), meter.release, nil
}

// timedBody gives the body its time, also where nobody reads it: the server
// reads the rest of a refused request before it takes the next.
func (g *Gateway) timedBody(next handler) handler {
	return func(x *exchange) error {
		if x.r.ContentLength != 0 {
			x.readUntil(time.Now().Add(g.limits.BodyTimeout))
		}
		return next(x)
	}
}

// readUntil sets the time by which reading ends, never for the zero time.
func (x *exchange) readUntil(t time.Time) {
	// Where the connection knows no deadlines, as in some tests, there is none.
	_ = http.NewResponseController(x.w).SetReadDeadline(t)
}

// lingerTime is how long a client that sends too much may take to see that.
const lingerTime = time.Second

// hangUp ends the connection after the answer, without waiting for the rest of
// the body.
func (x *exchange) hangUp() {
	x.w.Header().Set("Connection", "close")
	x.readUntil(time.Now().Add(lingerTime))
}

// tooLarge refuses a body. When the length was not announced, size is what had
// been read.
func tooLarge(x *exchange, size, limit int64) error {
	x.hangUp()
	return contextwire.TooLarge(size, limit)
}

// errNoRoom ends the reading of a body for which the budget has no room.
var errNoRoom = errors.New("too many large bodies at once")

func errBodies() error { return overloaded(errNoRoom.Error(), time.Second) }

// metered takes what it reads from the budget of all bodies, ahead in steps,
// because a body without a length may be small or endless.
type metered struct {
	r           io.Reader
	budget      *budget
	taken, read int64
}

const meterStep = 64 << 10

func (m *metered) Read(p []byte) (int, error) {
	if m.read == m.taken && !m.reserve(meterStep) {
		return 0, errNoRoom
	}
	n, err := m.r.Read(p[:min(int64(len(p)), m.taken-m.read)])
	m.read += int64(n)
	return n, err
}

func (m *metered) reserve(n int64) bool {
	if !m.budget.take(n) {
		return false
	}
	m.taken += n
	return true
}

func (m *metered) release() {
	m.budget.give(m.taken)
	m.taken, m.read = 0, 0
}
