package contextwire

// Probe asks a client whether it is alive and, of the calls named as
// "call/attempt", which it no longer waits for.
type Probe struct {
	Node, Boot string
	Calls      []string
}

// Map returns the wire form.
func (p *Probe) Map() map[string]any {
	m := map[string]any{"node": p.Node, "boot": p.Boot}
	if len(p.Calls) > 0 {
		m["calls"] = listOf(p.Calls)
	}
	return m
}

// DecodeProbe reads a [Probe].
func DecodeProbe(body []byte, ct ContentType, lim Limits) (*Probe, error) {
	r, err := readRecord("probe", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return done(r, &Probe{Node: r.need("node"), Boot: r.need("boot"), Calls: r.keys("calls")})
}

// ProbeAnswer answers a [Probe]. A client that knows nothing of the calls it was
// asked about may leave Unknown out; that says only that it is alive.
type ProbeAnswer struct {
	Unknown []string
}

// Map returns the wire form.
func (a *ProbeAnswer) Map() map[string]any {
	if len(a.Unknown) == 0 {
		return map[string]any{}
	}
	return map[string]any{"unknown": listOf(a.Unknown)}
}

// ProbeAnswerFromMap reads the body of an answer.
func ProbeAnswerFromMap(m map[string]any) (*ProbeAnswer, error) {
	r := &record{what: "probe answer", m: m}
	return done(r, &ProbeAnswer{Unknown: r.keys("unknown")})
}
