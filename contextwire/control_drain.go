package contextwire

import "math"

// DrainRequest asks a process to finish what it has and take nothing new.
type DrainRequest struct {
	// GraceMS is how long accepted calls may still run, in milliseconds.
	GraceMS int64
	By      string
}

// Map returns the wire form.
func (d *DrainRequest) Map() map[string]any {
	m := map[string]any{"grace_ms": d.GraceMS}
	putText(m, "by", clip(d.By))
	return m
}

// DecodeDrainRequest reads a [DrainRequest].
func DecodeDrainRequest(body []byte, ct ContentType, lim Limits) (*DrainRequest, error) {
	r, err := readRecord("drain request", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return done(r, &DrainRequest{GraceMS: r.integer("grace_ms", 0, maxMillis), By: r.text("by")})
}

// maxMillis is the longest time.Duration in milliseconds.
const maxMillis = math.MaxInt64 / 1_000_000

// DrainAnswer is given at once; progress is in the catalogue.
type DrainAnswer struct {
	InFlight int
}

// Map returns the wire form.
func (d *DrainAnswer) Map() map[string]any { return map[string]any{"in_flight": int64(d.InFlight)} }

// DecodeDrainAnswer reads a [DrainAnswer].
func DecodeDrainAnswer(body []byte, ct ContentType, lim Limits) (*DrainAnswer, error) {
	r, err := readRecord("drain answer", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return readDrainAnswer(r)
}

// DrainAnswerFromMap reads the body of an answering frame.
func DrainAnswerFromMap(m map[string]any) (*DrainAnswer, error) {
	return readDrainAnswer(&record{what: "drain answer", m: m})
}

func readDrainAnswer(r *record) (*DrainAnswer, error) {
	return done(r, &DrainAnswer{InFlight: r.count("in_flight")})
}

// DescribeRequest asks for the descriptor of Module, or for the facts of the
// process, a [NodeRecord], when Module is empty.
type DescribeRequest struct {
	Module string
}

// Map returns the wire form.
func (d *DescribeRequest) Map() map[string]any {
	m := map[string]any{}
	putText(m, "module", d.Module)
	return m
}

// DecodeDescribeRequest reads a [DescribeRequest].
func DecodeDescribeRequest(body []byte, ct ContentType, lim Limits) (*DescribeRequest, error) {
	r, err := readRecord("describe request", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return done(r, &DescribeRequest{Module: r.text("module")})
}
