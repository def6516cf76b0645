package contextwire

import (
	"encoding/base64"
	"maps"
	"math"
	"slices"

	"github.com/apbus/apbus/module"
)

// writer appends values to buf. The first error sticks; what is in buf then is
// garbage.
type writer struct {
	buf      []byte
	json     bool
	sorted   bool
	elements int
	lim      Limits
	err      error
}

func newWriter(dst []byte, ct ContentType, sorted bool) *writer {
	w := &writer{}
	w.begin(dst, ct, sorted)
	return w
}

// begin makes w ready to append to dst.
func (w *writer) begin(dst []byte, ct ContentType, sorted bool) {
	*w = writer{buf: dst, json: ct == JSON, sorted: sorted, lim: DefaultLimits()}
	if ct != JSON && ct != MsgPack {
		w.err = unsupportedType()
	}
}

func (w *writer) fail(err *module.Error) {
	if w.err == nil {
		w.err = err
	}
}

// value writes v, which lies inside depth lists and maps.
func (w *writer) value(v any, depth int) {
	if w.err != nil {
		return
	}
	switch x := v.(type) {
	case nil:
		w.null()
	case bool:
		w.boolean(x)
	case string:
		w.text(x)
	case int64:
		w.integer(x)
	case float64:
		w.float(x)
	case map[string]any:
		w.mapValue(x, depth)
	case []any:
		w.list(x, depth)
	case uint64:
		w.unsigned(x)
	case int:
		w.integer(int64(x))
	case int32:
		w.integer(int64(x))
	case float32:
		w.float(float64(x))
	case []string:
		writeList(w, x, depth, (*writer).textValue)
	case map[string]string:
		writeMap(w, x, depth, (*writer).textValue)
	case []map[string]any:
		writeList(w, x, depth, (*writer).mapValue)
	case []byte:
		w.text(base64.StdEncoding.EncodeToString(x))
	default:
		n, err := module.Normalize(v)
		if err != nil {
			w.fail(module.Wrap(module.CodeBusBadMessage, err, "value has no form on the wire").WithDetail("limit", "type"))
			return
		}
		switch n.(type) {
		case nil, bool, string, int64, uint64, float64, map[string]any, []any:
			w.value(n, depth)
		default:
			w.fail(refuse("type", "value has no form on the wire"))
		}
	}
}

func (w *writer) textValue(s string, _ int) { w.text(s) }

// list and mapValue do what writeList and writeMap do, without the indirect call
// for each item: nearly all of a message passes through them.
func (w *writer) list(list []any, depth int) {
	if !w.enter(len(list), depth) {
		return
	}
	if !w.json {
		w.listHeader(len(list))
		for _, item := range list {
			w.value(item, depth+1)
		}
		return
	}
	w.buf = append(w.buf, '[')
	for i, item := range list {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.value(item, depth+1)
	}
	w.buf = append(w.buf, ']')
}

func (w *writer) mapValue(m map[string]any, depth int) {
	if w.sorted {
		writeMap(w, m, depth, (*writer).value)
		return
	}
	if !w.enter(len(m), depth) {
		return
	}
	w.beginMap(len(m))
	first := true
	for k, v := range m {
		w.field(first, k)
		w.value(v, depth+1)
		first = false
	}
	w.endMap()
}

// enter checks that a container of n entries may begin at depth.
func (w *writer) enter(n, depth int) bool {
	if depth >= w.lim.MaxDepth {
		w.fail(exceeded("depth", w.lim.MaxDepth))
		return false
	}
	if w.elements += n; w.elements > w.lim.MaxElements {
		w.fail(exceeded("elements", w.lim.MaxElements))
		return false
	}
	return true
}

func writeList[T any](w *writer, list []T, depth int, write func(*writer, T, int)) {
	if !w.enter(len(list), depth) {
		return
	}
	if !w.json {
		w.listHeader(len(list))
		for _, item := range list {
			write(w, item, depth+1)
		}
		return
	}
	w.buf = append(w.buf, '[')
	for i, item := range list {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		write(w, item, depth+1)
	}
	w.buf = append(w.buf, ']')
}

func writeMap[T any](w *writer, m map[string]T, depth int, write func(*writer, T, int)) {
	if !w.enter(len(m), depth) {
		return
	}
	w.beginMap(len(m))
	first := true
	entry := func(k string, v T) {
		w.field(first, k)
		write(w, v, depth+1)
		first = false
	}
	if w.sorted {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			entry(k, m[k])
		}
	} else {
		for k, v := range m {
			entry(k, v)
		}
	}
	w.endMap()
}

// key writes a map key and, in JSON, the colon behind it.
func (w *writer) key(k string) {
	w.text(k)
	if w.json {
		w.buf = append(w.buf, ':')
	}
}

func (w *writer) null() {
	if w.json {
		w.buf = append(w.buf, "null"...)
	} else {
		w.buf = append(w.buf, mpNil)
	}
}

func (w *writer) boolean(b bool) {
	switch {
	case w.json && b:
		w.buf = append(w.buf, "true"...)
	case w.json:
		w.buf = append(w.buf, "false"...)
	case b:
		w.buf = append(w.buf, mpTrue)
	default:
		w.buf = append(w.buf, mpFalse)
	}
}

func (w *writer) text(s string) {
	var ok bool
	if w.json {
		w.buf, ok = appendJSONString(w.buf, s)
	} else {
		w.buf, ok = appendMsgpackString(w.buf, s)
	}
	if !ok {
		w.fail(refuse("utf-8", "text is not UTF-8"))
	}
}

func (w *writer) integer(n int64) {
	if w.json {
		w.buf = appendJSONInt(w.buf, n)
	} else {
		w.buf = appendMsgpackInt(w.buf, n)
	}
}

func (w *writer) unsigned(n uint64) {
	switch {
	case n <= math.MaxInt64:
		w.integer(int64(n))
	case w.json:
		w.buf = appendJSONUint(w.buf, n)
	default:
		w.buf = appendMsgpackUint(w.buf, n)
	}
}

func (w *writer) float(f float64) {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		w.fail(refuse("number", "number is NaN or infinite"))
	case w.json:
		w.buf = appendJSONFloat(w.buf, f)
	default:
		w.buf = appendMsgpackFloat(w.buf, f)
	}
}

func (w *writer) listHeader(n int) { w.buf = appendMsgpackHeader(w.buf, n, mpFixList, mpList16) }
func (w *writer) mapHeader(n int)  { w.buf = appendMsgpackHeader(w.buf, n, mpFixMap, mpMap16) }

// beginMap opens a map of n entries that the caller writes with field.
func (w *writer) beginMap(n int) {
	if w.json {
		w.buf = append(w.buf, '{')
	} else {
		w.mapHeader(n)
	}
}

// field writes the key of an entry; first is true for the first of its map. The
// value is to follow.
func (w *writer) field(first bool, key string) {
	if w.json && !first {
		w.buf = append(w.buf, ',')
	}
	w.key(key)
}

func (w *writer) endMap() {
	if w.json {
		w.buf = append(w.buf, '}')
	}
}

// sparseMap writes the entries of m that have a form on the wire and calls skip
// with the keys of the others.
func (w *writer) sparseMap(m map[string]any, depth int, skip func(key string, err error)) {
	if !w.enter(len(m), depth) {
		return
	}
	start, written := len(w.buf), 0
	w.beginMap(len(m))
	entry := func(k string, v any) {
		mark, elements := len(w.buf), w.elements
		w.field(written == 0, k)
		w.value(v, depth+1)
		if w.err != nil {
			skip(k, w.err)
			w.buf, w.elements, w.err = w.buf[:mark], elements, nil
			return
		}
		written++
	}
	if w.sorted {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			entry(k, m[k])
		}
	} else {
		for k, v := range m {
			entry(k, v)
		}
	}
	w.endMap()
	if !w.json && written < len(m) {
		patchMsgpackMap(w.buf[start:], written)
	}
}
