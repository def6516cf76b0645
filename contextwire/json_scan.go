package contextwire

import (
	"bytes"

	"github.com/apbus/apbus/module"
)

// jsonScan is the first pass over a JSON body: it finds the containers, counts
// their entries and what the value will cost. It checks limits and that brackets
// match; all other grammar is left to the second pass.
type jsonScan struct {
	body []byte
	lim  Limits
	// counts holds the number of entries of each container, in the order in which
	// they open.
	counts   []uint32
	elements int
	cost     int
}

// jsonOpen is a container that is still open.
type jsonOpen struct {
	index   int // in counts
	closing byte
}

func (s *jsonScan) run() *module.Error {
	var stack [64]jsonOpen
	open := stack[:0]
	b := s.body
	for i := 0; i < len(b); {
		c := b[i]
		switch jsonClasses[c] {
		case jsonSpace:
			i++
			continue
		case jsonComma:
			// A comma promises one more entry; the first is counted at its token.
			i++
			if n := len(open); n > 0 {
				s.counts[open[n-1].index]++
				if s.elements++; s.elements > s.lim.MaxElements {
					return exceeded("elements", s.lim.MaxElements)
				}
			}
			continue
		case jsonClose:
			i++
			n := len(open) - 1
			if n < 0 || open[n].closing != c {
				return refuseAt("syntax", i-1, "bracket does not match")
			}
			s.close(int(s.counts[open[n].index]), c)
			open = open[:n]
			continue
		}
		if n := len(open); n > 0 && s.counts[open[n-1].index] == 0 {
			s.counts[open[n-1].index] = 1
			if s.elements++; s.elements > s.lim.MaxElements {
				return exceeded("elements", s.lim.MaxElements)
			}
		}
		switch jsonClasses[c] {
		case jsonOpening:
			i++
			if len(open) >= s.lim.MaxDepth {
				return exceeded("depth", s.lim.MaxDepth)
			}
			closing := byte(']')
			if c == '{' {
				closing = '}'
			}
			open = append(open, jsonOpen{len(s.counts), closing})
			s.push()
		case jsonQuote:
			end := jsonStringEnd(b, i+1)
			if end < 0 {
				return refuseAt("truncated", i, "message ends inside a value")
			}
			s.cost += costString + costText(end-i)
			i = end + 1
		default:
			s.cost += costNumber
			for i++; i < len(b) && jsonClasses[b[i]] == jsonOther; i++ {
			}
		}
	}
	if len(open) > 0 {
		return refuseAt("truncated", len(b), "message ends inside a value")
	}
	if s.cost > 8*len(b)+s.lim.MaxOverhead {
		return exceeded("memory", 8*len(b)+s.lim.MaxOverhead)
	}
	return nil
}

// push adds a container. counts grows by doubling, which bounds what is thrown
// away on the way.
func (s *jsonScan) push() {
	if len(s.counts) == cap(s.counts) {
		grown := make([]uint32, len(s.counts), 2*cap(s.counts)+64)
		s.cost += 4 * cap(grown)
		copy(grown, s.counts)
		s.counts = grown
	}
	s.counts = append(s.counts, 0)
}

func (s *jsonScan) close(n int, c byte) {
	if c == '}' {
		// Keys were charged as boxed strings, which they are not; that is on the
		// safe side.
		s.cost += costEntries(n)
	} else {
		s.cost += costList + n*costItem
	}
}

// jsonStringEnd returns the index of the quote that ends the string whose text
// begins at i, -1 when there is none.
func jsonStringEnd(b []byte, i int) int {
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		escapes := 0
		for k := end - 1; k >= i && b[k] == '\\'; k-- {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
		i = end + 1
	}
}

type jsonClass uint8

const (
	jsonOther jsonClass = iota
	jsonSpace           // white space, and colons, which only the second pass looks at
	jsonComma
	jsonOpening
	jsonClose
	jsonQuote
)

// jsonClasses is never written after construction.
var jsonClasses = [256]jsonClass{
	' ': jsonSpace, '\t': jsonSpace, '\n': jsonSpace, '\r': jsonSpace, ':': jsonSpace,
	',': jsonComma, '{': jsonOpening, '[': jsonOpening, '}': jsonClose, ']': jsonClose, '"': jsonQuote,
}
