package contextwire

// Ping asks a process whether it is alive and tells it which calls the client
// waits for: the changes since the last ping, as "call/attempt" (see [FormatKey]).
type Ping struct {
	// Client is the client's inbox prefix.
	Client string
	Open   []string
	Closed []string
}

// Map returns the wire form.
func (p *Ping) Map() map[string]any {
	return map[string]any{"client": p.Client, "open": listOf(p.Open), "closed": listOf(p.Closed)}
}

// DecodePing reads a [Ping]; every entry of its lists is a valid key.
func DecodePing(body []byte, ct ContentType, lim Limits) (*Ping, error) {
	r, err := readRecord("ping", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return done(r, &Ping{Client: r.need("client"), Open: r.keys("open"), Closed: r.keys("closed")})
}

// keys reads a list of "call/attempt".
func (r *record) keys(key string) []string {
	list := r.texts(key)
	for _, s := range list {
		if _, _, ok := ParseKey(s); !ok {
			r.fail(key, "has an item that is not call/attempt")
			return nil
		}
	}
	return list
}

// Pong answers a [Ping].
type Pong struct {
	Node, Boot string
	Draining   bool
	// InFlight counts calls, Debt the goroutines of abandoned calls.
	InFlight, Debt int
	// Unknown are the open calls, as "call/attempt", that the process does not
	// know.
	Unknown []string
}

// Map returns the wire form.
func (p *Pong) Map() map[string]any {
	return map[string]any{
		"node": p.Node, "boot": p.Boot, "draining": p.Draining,
		"in_flight": int64(p.InFlight), "debt": int64(p.Debt), "unknown": listOf(p.Unknown),
	}
}

// DecodePong reads a [Pong].
func DecodePong(body []byte, ct ContentType, lim Limits) (*Pong, error) {
	r, err := readRecord("pong", body, ct, lim)
	if err != nil {
		return nil, err
	}
	return readPong(r)
}

// PongFromMap reads the body of an answering frame.
func PongFromMap(m map[string]any) (*Pong, error) { return readPong(&record{what: "pong", m: m}) }

func readPong(r *record) (*Pong, error) {
	return done(r, &Pong{
		Node: r.need("node"), Boot: r.need("boot"), Draining: r.boolean("draining"),
		InFlight: r.count("in_flight"), Debt: r.count("debt"), Unknown: r.keys("unknown"),
	})
}
