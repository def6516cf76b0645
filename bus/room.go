package bus

import (
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/apbus/apbus/contextwire"
)

// room is where a message is made that is published at once: publishing copies it, so
// that the next one can be made in the same place.
type room struct {
	encoder contextwire.Encoder
	msg     nats.Msg
}

// rooms are those that nobody uses. The zero value is ready.
type rooms struct{ pool sync.Pool }

func (p *rooms) take() *room {
	if r, ok := p.pool.Get().(*room); ok {
		return r
	}
	return &room{}
}

// give takes a room back. Nobody may look at its message any more.
func (p *rooms) give(r *room) {
	r.msg = nats.Msg{}
	p.pool.Put(r)
}
