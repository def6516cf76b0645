package task

import (
	"encoding/json"
	"errors"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// Failure is a coded error as part of a record or message; its JSON is the error's
// wire form. A nil pointer is no failure.
type Failure struct{ *module.Error }

// Fail makes a Failure from any error; one without a code becomes
// GENERAL_INTERNAL_ERROR. nil gives nil.
func Fail(err error) *Failure {
	if err == nil {
		return nil
	}
	if e := module.AsError(err); e != nil {
		return &Failure{e}
	}
	return &Failure{module.Wrap(module.CodeInternal, err, err.Error())}
}

// Err returns the error, nil for a nil Failure.
func (f *Failure) Err() error {
	if f == nil || f.Error == nil {
		return nil
	}
	return f.Error
}

// Code returns the code, "" for a nil Failure.
func (f *Failure) Code() module.Code {
	if f == nil || f.Error == nil {
		return ""
	}
	return f.Error.Code
}

// MarshalJSON writes the sparse wire form.
func (f *Failure) MarshalJSON() ([]byte, error) {
	if f == nil || f.Error == nil {
		return []byte("null"), nil
	}
	b, err := contextwire.EncodeCanonical(contextwire.JSON, f.Map())
	if err != nil { // details without a form on the wire
		return contextwire.EncodeCanonical(contextwire.JSON, f.WithDetails(nil).Map())
	}
	return b, nil
}

// UnmarshalJSON reads the wire form, and a plain text, which some task managers
// store, as GENERAL_INTERNAL_ERROR of that message.
func (f *Failure) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var text string
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		f.Error = module.Errorf(module.CodeInternal, "%s", text)
		return nil
	}
	m, err := contextwire.DecodeMap(contextwire.JSON, b, contextwire.Limits{})
	if err != nil {
		return err
	}
	e, ok := module.ErrorFromMap(m)
	if !ok {
		return errors.New("an error without a code")
	}
	f.Error = e
	return nil
}
