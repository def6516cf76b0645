package module

// DefaultMergeDepth is how many levels of objects the chunks of a stream are
// merged, the chunk itself being the first (stream.max_merge_depth).
const DefaultMergeDepth = 32

// Merge puts the chunks of a stream together, left to right: objects merge
// member by member, anything else, lists and null included, takes the place of
// what was there (core-executor seed, Deep Merge for Streaming; algorithm A24). At
// the depth cap the later value is taken whole, never dropped. It works on copies
// of objects; lists and scalars are shared with the chunks. Not safe for
// concurrent use.
type Merge struct {
	depth int
	value map[string]any
}

// NewMerge makes an empty Merge; a depth below 1 means [DefaultMergeDepth].
func NewMerge(depth int) *Merge {
	if depth < 1 {
		depth = DefaultMergeDepth
	}
	return &Merge{depth: depth}
}

// Add merges one more chunk; an empty one changes nothing.
func (m *Merge) Add(chunk Chunk) {
	if m.value == nil {
		m.value = make(map[string]any, len(chunk))
	}
	m.into(m.value, chunk, 1)
}

// Value returns what the chunks came to, nil when there was none. Later chunks
// still change it.
func (m *Merge) Value() map[string]any { return m.value }

// into merges src into dst, whose objects down to the cap belong to the Merge.
func (m *Merge) into(dst, src map[string]any, level int) {
	for k, v := range src {
		later, isObject := v.(map[string]any)
		if !isObject || level == m.depth {
			dst[k] = v
			continue
		}
		earlier, ok := dst[k].(map[string]any)
		if !ok {
			earlier = make(map[string]any, len(later))
			dst[k] = earlier
		}
		m.into(earlier, later, level+1)
	}
}
