package contextwire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// First bytes of the msgpack format. Of a size family only the smallest is
// named; the others follow it.
const (
	mpFixMap  = 0x80 // to 0x8f
	mpFixList = 0x90 // to 0x9f
	mpFixStr  = 0xa0 // to 0xbf
	mpNil     = 0xc0
	mpFalse   = 0xc2
	mpTrue    = 0xc3
	mpBin8    = 0xc4 // 16, 32 follow
	mpExt8    = 0xc7 // 16, 32 follow
	mpFloat32 = 0xca
	mpFloat64 = 0xcb
	mpUint8   = 0xcc // 16, 32, 64 follow
	mpInt8    = 0xd0 // 16, 32, 64 follow
	mpFixExt1 = 0xd4 // 2, 4, 8, 16 follow
	mpStr8    = 0xd9 // 16, 32 follow
	mpList16  = 0xdc // 32 follows
	mpMap16   = 0xde // 32 follows
	mpNegFix  = 0xe0 // to 0xff
)

// appendMsgpackHeader writes the header of a list or map of n entries: the fix
// form when it fits, else the 16 or 32 bit form.
func appendMsgpackHeader(dst []byte, n int, fix, size16 byte) []byte {
	switch {
	case n < 16:
		return append(dst, fix|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, size16), uint16(n))
	default: // the element limit keeps n far below 32 bits
		return binary.BigEndian.AppendUint32(append(dst, size16+1), uint32(n))
	}
}

func appendMsgpackString(dst []byte, s string) ([]byte, bool) {
	n := len(s)
	switch {
	case n < 32:
		dst = append(dst, mpFixStr|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, mpStr8, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, mpStr8+1), uint16(n))
	case n <= math.MaxUint32:
		dst = binary.BigEndian.AppendUint32(append(dst, mpStr8+2), uint32(n))
	default:
		return dst, false
	}
	return append(dst, s...), utf8.ValidString(s)
}

func appendMsgpackInt(dst []byte, n int64) []byte {
	switch {
	case n >= 0:
		return appendMsgpackUint(dst, uint64(n))
	case n >= -32:
		return append(dst, byte(n))
	case n >= math.MinInt8:
		return append(dst, mpInt8, byte(n))
	case n >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, mpInt8+1), uint16(n))
	case n >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, mpInt8+2), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, mpInt8+3), uint64(n))
	}
}

func appendMsgpackUint(dst []byte, n uint64) []byte {
	switch {
	case n < 0x80:
		return append(dst, byte(n))
	case n <= math.MaxUint8:
		return append(dst, mpUint8, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, mpUint8+1), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, mpUint8+2), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, mpUint8+3), n)
	}
}

func appendMsgpackFloat(dst []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, mpFloat64), math.Float64bits(f))
}

// patchMsgpackMap lowers the number of entries in the map header that b begins
// with and keeps the header's form.
func patchMsgpackMap(b []byte, n int) {
	switch b[0] {
	case mpMap16:
		binary.BigEndian.PutUint16(b[1:], uint16(n))
	case mpMap16 + 1:
		binary.BigEndian.PutUint32(b[1:], uint32(n))
	default:
		b[0] = mpFixMap | byte(n)
	}
}
