package contextwire

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/apbus/apbus/module"
)

// decodeMsgpack reads body in two passes: the first checks everything and
// allocates nothing, the second builds the value.
func decodeMsgpack(body []byte, lim Limits) (any, error) {
	s := msgpackScan{body: body, lim: lim}
	end := s.value(0, 0)
	switch {
	case s.err != nil:
		return nil, s.err
	case end != len(body):
		return nil, refuseAt("trailing", end, "message goes on after its value")
	case s.cost > 8*len(body)+lim.MaxOverhead:
		return nil, exceeded("memory", 8*len(body)+lim.MaxOverhead)
	}
	b := msgpackBuild{body: body, texts: newTexts(body)}
	v := b.value()
	if b.duplicate {
		return nil, refuseAt("duplicate-key", b.pos, "map has a key twice")
	}
	return v, nil
}

// msgpackItem is what the first bytes of a value say.
type msgpackItem struct {
	kind mpKind
	// n is the length of a string or bin, or the number of entries.
	n int
	// next is where the content begins, for a scalar where it ends.
	next int
}

type mpKind byte

const (
	mpkTruncated mpKind = iota
	mpkInvalid
	mpkExt
	mpkNil
	mpkBool
	mpkInt
	mpkUint
	mpkFloat32
	mpkFloat64
	mpkString
	mpkBin
	mpkList
	mpkMap
)

// msgpackHead reads the item at i. The bytes of a scalar's payload are there
// when kind says a scalar; those of a string or container are not checked.
func msgpackHead(b []byte, i int) msgpackItem {
	if i >= len(b) {
		return msgpackItem{}
	}
	c := b[i]
	i++
	switch {
	case c < mpFixMap, c >= mpNegFix:
		return msgpackItem{kind: mpkInt, next: i}
	case c < mpFixList:
		return msgpackItem{mpkMap, int(c & 0x0f), i}
	case c < mpFixStr:
		return msgpackItem{mpkList, int(c & 0x0f), i}
	case c < mpNil:
		return msgpackItem{mpkString, int(c & 0x1f), i}
	}
	switch c {
	case mpNil:
		return msgpackItem{kind: mpkNil, next: i}
	case mpFalse, mpTrue:
		return msgpackItem{kind: mpkBool, next: i}
	case mpBin8, mpBin8 + 1, mpBin8 + 2:
		return msgpackSized(b, i, 1<<(c-mpBin8), mpkBin)
	case mpStr8, mpStr8 + 1, mpStr8 + 2:
		return msgpackSized(b, i, 1<<(c-mpStr8), mpkString)
	case mpList16, mpList16 + 1:
		return msgpackSized(b, i, 2<<(c-mpList16), mpkList)
	case mpMap16, mpMap16 + 1:
		return msgpackSized(b, i, 2<<(c-mpMap16), mpkMap)
	case mpFloat32:
		return msgpackFixed(b, i, 4, mpkFloat32)
	case mpFloat64:
		return msgpackFixed(b, i, 8, mpkFloat64)
	case mpUint8, mpUint8 + 1, mpUint8 + 2, mpUint8 + 3:
		return msgpackFixed(b, i, 1<<(c-mpUint8), mpkUint)
	case mpInt8, mpInt8 + 1, mpInt8 + 2, mpInt8 + 3:
		return msgpackFixed(b, i, 1<<(c-mpInt8), mpkInt)
	case mpExt8, mpExt8 + 1, mpExt8 + 2, mpFixExt1, mpFixExt1 + 1, mpFixExt1 + 2, mpFixExt1 + 3, mpFixExt1 + 4:
		return msgpackItem{kind: mpkExt, next: i}
	}
	return msgpackItem{kind: mpkInvalid, next: i}
}

func msgpackFixed(b []byte, i, size int, kind mpKind) msgpackItem {
	if len(b)-i < size {
		return msgpackItem{}
	}
	return msgpackItem{kind: kind, next: i + size}
}

func msgpackSized(b []byte, i, size int, kind mpKind) msgpackItem {
	if len(b)-i < size {
		return msgpackItem{}
	}
	n := bigEndian(b[i : i+size])
	return msgpackItem{kind: kind, n: int(n), next: i + size} // 32 bits at most
}

// bigEndian reads 1, 2, 4 or 8 bytes.
func bigEndian(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	default:
		return binary.BigEndian.Uint64(b)
	}
}

// msgpackScan is the first pass.
type msgpackScan struct {
	body     []byte
	lim      Limits
	elements int
	cost     int
	err      *module.Error
}

func (s *msgpackScan) fail(err *module.Error) int {
	s.err = err
	return -1
}

// value checks the value at i inside depth containers and returns where it ends.
// It returns a negative number when it set err.
func (s *msgpackScan) value(i, depth int) int {
	item := msgpackHead(s.body, i)
	rest := len(s.body) - item.next
	switch item.kind {
	case mpkNil, mpkBool:
	case mpkInt, mpkUint:
		s.cost += costNumber
	case mpkFloat32, mpkFloat64:
		s.cost += costNumber
		if f := msgpackFloat(s.body, i); math.IsNaN(f) || math.IsInf(f, 0) {
			return s.fail(refuseAt("number", i, "number is NaN or infinite"))
		}
	case mpkString:
		s.cost += costString
		return s.text(i, item)
	case mpkBin:
		s.cost += costString + costText(base64.StdEncoding.EncodedLen(item.n))
		if item.n > rest {
			return s.fail(refuseAt("length", i, "declared length is beyond the end"))
		}
		return item.next + item.n
	case mpkList:
		return s.list(i, depth, item)
	case mpkMap:
		return s.entries(i, depth, item)
	default:
		return s.fail(item.refusal(i))
	}
	return item.next
}

func (item msgpackItem) refusal(i int) *module.Error {
	switch item.kind {
	case mpkExt:
		return refuseAt("ext", i, "msgpack extension types are not part of the JSON data model")
	case mpkTruncated:
		return refuseAt("truncated", i, "message ends inside a value")
	default:
		return refuseAt("syntax", i, "byte begins no msgpack value")
	}
}

func (s *msgpackScan) text(i int, item msgpackItem) int {
	if item.n > len(s.body)-item.next {
		return s.fail(refuseAt("length", i, "declared length is beyond the end"))
	}
	end := item.next + item.n
	if !utf8.Valid(s.body[item.next:end]) {
		return s.fail(refuseAt("utf-8", i, "text is not UTF-8"))
	}
	s.cost += costText(item.n)
	return end
}

// enter counts a container whose n entries take at least size bytes each.
func (s *msgpackScan) enter(i, depth int, item msgpackItem, size int) bool {
	switch {
	case depth >= s.lim.MaxDepth:
		s.fail(exceeded("depth", s.lim.MaxDepth))
	case item.n > (len(s.body)-item.next)/size:
		s.fail(refuseAt("length", i, "declared length is beyond the end"))
	case s.elements+item.n > s.lim.MaxElements:
		s.fail(exceeded("elements", s.lim.MaxElements))
	default:
		s.elements += item.n
		return true
	}
	return false
}

func (s *msgpackScan) list(i, depth int, item msgpackItem) int {
	if !s.enter(i, depth, item, 1) {
		return -1
	}
	s.cost += costList + item.n*costItem
	at := item.next
	for range item.n {
		if at = s.value(at, depth+1); at < 0 {
			return -1
		}
	}
	return at
}

func (s *msgpackScan) entries(i, depth int, item msgpackItem) int {
	if !s.enter(i, depth, item, 2) {
		return -1
	}
	s.cost += costEntries(item.n)
	at := item.next
	for range item.n {
		key := msgpackHead(s.body, at)
		switch key.kind {
		case mpkString:
			at = s.text(at, key)
		case mpkTruncated:
			return s.fail(key.refusal(at))
		default:
			return s.fail(refuseAt("key", at, "map key is not a string"))
		}
		if at < 0 {
			return -1
		}
		if at = s.value(at, depth+1); at < 0 {
			return -1
		}
	}
	return at
}

// msgpackFloat reads the float at i.
func msgpackFloat(b []byte, i int) float64 {
	if b[i] == mpFloat32 {
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b[i+1:])))
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b[i+1:]))
}

// msgpackBuild is the second pass, over a body that the first found to be sound
// but for duplicate keys.
type msgpackBuild struct {
	body      []byte
	pos       int
	texts     texts
	duplicate bool
}

func (b *msgpackBuild) value() any {
	start := b.pos
	item := msgpackHead(b.body, start)
	b.pos = item.next
	switch item.kind {
	case mpkBool:
		return b.body[start] == mpTrue
	case mpkInt:
		return msgpackInt(b.body[start:item.next])
	case mpkUint:
		if n := bigEndian(b.body[start+1 : item.next]); n > math.MaxInt64 {
			return n
		} else {
			return int64(n)
		}
	case mpkFloat32, mpkFloat64:
		return msgpackFloat(b.body, start)
	case mpkString:
		b.pos += item.n
		return b.texts.slice(item.next, b.pos)
	case mpkBin:
		b.pos += item.n
		return base64.StdEncoding.EncodeToString(b.body[item.next:b.pos])
	case mpkList:
		list := make([]any, item.n)
		for i := range list {
			list[i] = b.value()
		}
		return list
	case mpkMap:
		m := make(map[string]any, item.n)
		for i := range item.n {
			key := msgpackHead(b.body, b.pos)
			b.pos = key.next + key.n
			k := b.texts.key(key.next, b.pos)
			m[k] = b.value()
			if len(m) != i+1 {
				b.duplicate = true
			}
		}
		return m
	}
	return nil
}

// msgpackInt reads a fix or signed integer from all of its bytes.
func msgpackInt(b []byte) int64 {
	switch len(b) {
	case 1:
		return int64(int8(b[0]))
	case 2:
		return int64(int8(b[1]))
	case 3:
		return int64(int16(binary.BigEndian.Uint16(b[1:])))
	case 5:
		return int64(int32(binary.BigEndian.Uint32(b[1:])))
	default:
		return int64(binary.BigEndian.Uint64(b[1:]))
	}
}
