package task

import (
	"encoding/json"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/schema"
)

// redactor makes the form of records that readers get (durable design, rule 13): by
// the schema of the module where it is known, by the names of members always. What
// cannot be read is masked whole.
type redactor struct {
	by *schema.Redactor
}

// mask stands for a value that is masked whole.
const mask = `"` + schema.DefaultReplacement + `"`

// record returns a copy of r for readers.
func (d redactor) record(r *Record, sh *shape) Record {
	out := *r
	out.Inputs = d.object(sh.input, r.Inputs)
	out.Result = d.object(sh.output, r.Result)
	out.Context = d.object(nil, r.Context)
	out.Checkpoint = d.object(nil, r.Checkpoint)
	if r.Approved { // the approval is the token
		out.ApprovalID = schema.DefaultReplacement
	}
	return out
}

// object masks what is sensitive in a JSON object. Another JSON value is masked
// whole, but for null.
func (d redactor) object(c *schema.Compiled, raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 || string(raw) == "null" {
		return raw
	}
	m, err := contextwire.DecodeMap(contextwire.JSON, raw, contextwire.Limits{})
	if err != nil {
		return json.RawMessage(mask)
	}
	masked, err := contextwire.EncodeCanonical(contextwire.JSON, d.by.Redact(c, m))
	if err != nil {
		return json.RawMessage(mask)
	}
	return masked
}
