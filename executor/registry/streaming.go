package registry

import (
	"reflect"

	"github.com/apbus/apbus/module"
)

// checkStreaming refuses a module whose annotation promises a stream that it
// cannot give. details.mismatch_reason is missing_marker when there is no method
// Stream at all, wrong_arity or wrong_return_type when there is a different one.
func checkStreaming(m module.Module, d *module.Descriptor) error {
	if !d.Annotations.Streaming {
		return nil
	}
	if _, ok := m.(module.Streamer); ok {
		return nil
	}
	want := reflect.TypeFor[module.Streamer]().Method(0).Type
	details := map[string]any{
		"module_id": d.ID, "expected_signature": want.String(), "actual_signature": nil, "mismatch_reason": "missing_marker",
	}
	if method := reflect.ValueOf(m).MethodByName("Stream"); method.IsValid() {
		got := method.Type()
		details["actual_signature"] = got.String()
		details["mismatch_reason"] = "wrong_return_type"
		if got.NumIn() != want.NumIn() || got.NumOut() != want.NumOut() {
			details["mismatch_reason"] = "wrong_arity"
		}
	}
	return module.Errorf(module.CodeStreamingInterfaceMismatch, "module %s is annotated as streaming, but is no module.Streamer", d.ID).
		WithDetails(details)
}
