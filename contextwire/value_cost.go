package contextwire

import "math/bits"

// The decoders count what a value will take before they build it. The numbers
// are those of Go's 64-bit runtime, a little rounded up.
const (
	costItem   = 16 // a list slot
	costList   = 24 // a slice header in an interface
	costNumber = 8
	costString = 16 // a string header in an interface
	costMap    = 48
	costGroup  = 288 // eight map slots with their control word
	costTable  = 64
)

// costText is what the bytes of a string take.
func costText(n int) int { return n + n>>3 + 8 }

// costEntries is what a map takes beside its keys and values.
func costEntries(n int) int {
	switch {
	case n == 0:
		return costMap
	case n <= 8:
		return costMap + costGroup
	}
	slots := 1 << bits.Len(uint(n*8/7))
	return costMap + (slots/8)*costGroup + (slots/512+2)*costTable
}

// sharedText is the size up to which a body is copied once and all its strings
// are parts of that copy. Above, each string is its own, so that keeping one does
// not keep the body.
const sharedText = 4 << 10

// texts makes the strings of one body.
type texts struct {
	body   []byte
	shared string
	// recent holds keys already made, since lists of maps repeat them.
	recent *[64]string
}

func newTexts(body []byte) texts {
	if len(body) <= sharedText {
		return texts{body: body, shared: string(body)}
	}
	return texts{body: body, recent: new([64]string)}
}

// slice returns body[i:j] as a string.
func (t *texts) slice(i, j int) string {
	if t.recent == nil {
		return t.shared[i:j]
	}
	return string(t.body[i:j])
}

// key is slice for map keys.
func (t *texts) key(i, j int) string {
	n := j - i
	if t.recent == nil || n == 0 || n > 32 {
		return t.slice(i, j)
	}
	b := t.body[i:j]
	slot := &t.recent[(uint(b[0])*7+uint(b[n-1])*3+uint(b[n/2])*5+uint(n))%64]
	if *slot != string(b) {
		*slot = string(b)
	}
	return *slot
}
