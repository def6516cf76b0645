package contextwire

// headerWriter builds a header block. Its values share one array: a block is
// made for every message, and a slice for every value would be most of its cost.
type headerWriter struct {
	header Header
	cells  []string
}

// usualHeaders is how many headers most messages have; a map of that size is one
// allocation.
const usualHeaders = 8

func newHeaderWriter() headerWriter {
	return headerWriter{header: make(Header, usualHeaders), cells: make([]string, 0, usualHeaders)}
}

// put adds a header unless value is empty.
func (w *headerWriter) put(name, value string) {
	if value == "" {
		return
	}
	w.cells = append(w.cells, value)
	n := len(w.cells)
	w.header[name] = w.cells[n-1 : n : n]
}
