package bus

import (
	"encoding/binary"

	"github.com/nats-io/nats.go"
)

// image is a message without its subjects in one piece of memory. A node keeps those
// of a second or two, and the collector would look at every header of each time and
// again; an image has nothing in it to look at.
type image []byte

// imageOf copies m.
func imageOf(m *nats.Msg) image {
	size, count := len(m.Data)+binary.MaxVarintLen64, 0
	for name, values := range m.Header {
		for _, v := range values {
			size += len(name) + len(v) + 2*binary.MaxVarintLen16
			count++
		}
	}
	out := binary.AppendUvarint(make(image, 0, size), uint64(count)) //nolint:gosec // a count
	for name, values := range m.Header {
		for _, v := range values {
			out = appendText(appendText(out, name), v)
		}
	}
	return append(out, m.Data...)
}

func appendText(dst image, s string) image {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// message makes the message again.
func (i image) message(subject string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Header: nats.Header{}}
	count, rest := i.number()
	for range count {
		var name, value string
		name, rest = rest.text()
		value, rest = rest.text()
		m.Header[name] = append(m.Header[name], value)
	}
	m.Data = append(m.Data, rest...)
	return m
}

func (i image) number() (uint64, image) {
	n, size := binary.Uvarint(i)
	return n, i[size:]
}

func (i image) text() (string, image) {
	n, rest := i.number()
	return string(rest[:n]), rest[n:]
}
