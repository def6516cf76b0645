package task

import (
	"encoding/json"
	"fmt"
)

// encodeRecord writes what the log keeps.
func encodeRecord(r *Record) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		// Everything in a record was checked on its way in.
		panic(fmt.Sprintf("task record %s has no JSON form: %v", r.TaskID, err))
	}
	return b
}

// decodeRecord reads what encodeRecord wrote, also of a newer version as far as it
// is understood.
func decodeRecord(b []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.V < 1 || r.V <= RecordVersion && (!r.Status.Valid() || r.ModuleID == "" || r.Order <= 0) {
		return nil, fmt.Errorf("the record is incomplete")
	}
	return r, nil
}
