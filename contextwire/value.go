package contextwire

import "github.com/apbus/apbus/module"

// Encode writes v in ct.
func Encode(ct ContentType, v any) ([]byte, error) { return Append(nil, ct, v) }

// Append is [Encode] onto dst.
func Append(dst []byte, ct ContentType, v any) ([]byte, error) {
	return dst, module.Errorf(module.CodeNotImplemented, "append")
}

// EncodeCanonical is [Encode] with map keys in byte order, so that equal values
// give equal bytes.
func EncodeCanonical(ct ContentType, v any) ([]byte, error) {
	return nil, module.Errorf(module.CodeNotImplemented, "encode canonical")
}

// Decode reads one value that fills body.
func Decode(ct ContentType, body []byte, lim Limits) (any, error) {
	return nil, module.Errorf(module.CodeNotImplemented, "decode")
}

// DecodeMap is [Decode] for a body that must be a map.
func DecodeMap(ct ContentType, body []byte, lim Limits) (map[string]any, error) {
	return nil, module.Errorf(module.CodeNotImplemented, "decode map")
}
