package contextwire

import "github.com/apbus/apbus/module"

// ContextMap returns the wire form of c.
func ContextMap(c *module.Context) map[string]any { return nil }

// EncodeContext writes the wire form of c in ct.
func EncodeContext(c *module.Context, ct ContentType) ([]byte, error) {
	return Encode(ct, ContextMap(c))
}

// DecodeContext reads the wire form of a Context.
func DecodeContext(body []byte, ct ContentType, lim Limits) (*module.Context, error) {
	m, err := DecodeMap(ct, body, lim)
	if err != nil {
		return nil, err
	}
	return ContextFromMap(m)
}

// ContextFromMap reads the wire form of a Context.
func ContextFromMap(m map[string]any) (*module.Context, error) {
	return nil, module.Errorf(module.CodeNotImplemented, "context")
}
