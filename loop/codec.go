package loop

import (
	"fmt"
	"reflect"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// What is stored is canonical JSON of these types. Their layouts are studied once;
// a pass reads thousands of documents.
var (
	recLayout   = schema.Bind(reflect.TypeFor[Recommendation]())
	auditLayout = schema.Bind(reflect.TypeFor[AuditEntry]())
	slotLayout  = schema.Bind(reflect.TypeFor[slotDoc]())
)

// decodeStored reads one stored document into *out.
func decodeStored[T any](layout *schema.Binding, raw []byte, out *T) error {
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{MaxBody: MaxStoreValue})
	if err != nil {
		return fmt.Errorf("read stored document: %w", err)
	}
	if err := layout.Decode(m, reflect.ValueOf(out).Elem()); err != nil {
		return fmt.Errorf("read stored document: %w", err)
	}
	return nil
}

// encodeStored renders a document.
func encodeStored(v any) ([]byte, error) {
	m, err := module.ToMap(v)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	raw, err := schema.CanonicalJSON(m)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return raw, nil
}
