package contextwire

// headerWriter builds a header block. Its values share one array: a block is
// made for every message, and a slice for every value would be most of its cost.
// Blocks that are made one after the other mostly have the same names, and then only
// the values change in the map of the one before.
type headerWriter struct {
	header Header
	names  []string // of the headers in header, in the order they were put
	cells  []string // their values; header's are parts of it
	n      int      // how many have been put
	stale  bool     // header does not have these names, or not these cells
}

// usualHeaders is how many headers most messages have; a map of that size is one
// allocation.
const usualHeaders = 8

// begin starts a block in the room of the one before.
func (w *headerWriter) begin() { w.n = 0 }

// put adds a header unless value is empty.
func (w *headerWriter) put(name, value string) {
	switch {
	case value == "":
		return
	case w.n < len(w.names) && w.names[w.n] == name:
		w.cells[w.n] = value
	default:
		if w.cells == nil {
			w.names, w.cells = make([]string, 0, usualHeaders), make([]string, 0, usualHeaders)
		}
		w.names, w.cells = append(w.names[:w.n], name), append(w.cells[:w.n], value)
		w.stale = true
	}
	w.n++
}

// finish returns the block.
func (w *headerWriter) finish() Header {
	if !w.stale && w.n == len(w.names) && w.header != nil {
		return w.header
	}
	if w.header == nil {
		w.header = make(Header, usualHeaders)
	}
	clear(w.header)
	clear(w.cells[w.n:])
	w.names, w.cells, w.stale = w.names[:w.n], w.cells[:w.n], false
	for i, name := range w.names {
		w.header[name] = w.cells[i : i+1 : i+1]
	}
	return w.header
}
