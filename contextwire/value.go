package contextwire

import "github.com/apbus/apbus/module"

// Encode writes v, a value of the JSON data model, in ct. Other Go values are
// brought into the model first (see module.Normalize); a nil list is an empty
// list and a nil map an empty map. What has no form on the wire (NaN,
// infinities, text that is not UTF-8, a Go type without a JSON form) or exceeds
// the depth and element limits is BUS_BAD_MESSAGE. The order of map keys is not
// fixed; see [EncodeCanonical].
func Encode(ct ContentType, v any) ([]byte, error) {
	return encodeValue(ct, v, false)
}

func encodeValue(ct ContentType, v any, sorted bool) ([]byte, error) {
	body, err := appendValue(make([]byte, 0, 256), ct, v, sorted)
	if err != nil {
		return nil, err
	}
	return body, nil
}

// Append is [Encode] onto dst. On error dst is returned as it was.
func Append(dst []byte, ct ContentType, v any) ([]byte, error) {
	return appendValue(dst, ct, v, false)
}

// EncodeCanonical is [Encode] with map keys in byte order, so that equal values
// give equal bytes.
func EncodeCanonical(ct ContentType, v any) ([]byte, error) {
	return encodeValue(ct, v, true)
}

func appendValue(dst []byte, ct ContentType, v any, sorted bool) ([]byte, error) {
	w := newWriter(dst, ct, sorted)
	w.value(v, 0)
	if w.err != nil {
		return dst, w.err
	}
	return w.buf, nil
}

// Decode reads one value that fills body. Every limit is checked before memory is
// allocated for the value, which takes at most 8 × the body and
// [Limits.MaxOverhead]. A body over MaxBody is BUS_PAYLOAD_TOO_LARGE, everything
// else BUS_BAD_MESSAGE.
func Decode(ct ContentType, body []byte, lim Limits) (any, error) {
	lim = lim.withDefaults()
	if err := lim.CheckSize(len(body)); err != nil {
		return nil, err
	}
	switch ct {
	case MsgPack:
		return decodeMsgpack(body, lim)
	case JSON:
		return decodeJSON(body, lim)
	}
	return nil, unsupportedType()
}

// DecodeMap is [Decode] for a body that must be a map.
func DecodeMap(ct ContentType, body []byte, lim Limits) (map[string]any, error) {
	v, err := Decode(ct, body, lim)
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, bad("body is not a map")
	}
	return m, nil
}

func unsupportedType() *module.Error {
	return module.Errorf(module.CodeBusUnsupportedType, "content type is neither %s nor %s", MsgPack, JSON)
}

// refuseAt is refuse for a place in a body.
func refuseAt(limit string, offset int, text string) *module.Error {
	return module.Errorf(module.CodeBusBadMessage, "%s", text).
		WithDetails(map[string]any{"limit": limit, "offset": int64(offset)})
}

// exceeded is the refusal of a body that goes beyond a number in [Limits].
func exceeded(limit string, maximum int) *module.Error {
	return module.Errorf(module.CodeBusBadMessage, "message exceeds the limit of %d on %s", maximum, limit).
		WithDetails(map[string]any{"limit": limit, "max": int64(maximum)})
}
