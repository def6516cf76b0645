package schema

import (
	"container/list"
	"sync"
)

// cacheSize is how many compiled documents a Cache keeps.
const cacheSize = 1024

// Cache compiles each distinct document once, also when it is asked for from several
// goroutines at once. It keeps the most recently used ones, keyed by content hash, and
// is safe for concurrent use. Errors are not kept.
type Cache struct {
	mu       sync.Mutex
	byHash   map[string]*list.Element
	recent   *list.List // of *cacheEntry, the latest first
	compiled int
}

// cacheEntry is one document. done is closed when it is compiled, or cannot be.
type cacheEntry struct {
	hash     string
	done     chan struct{}
	compiled *Compiled
	err      error
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	return &Cache{byHash: map[string]*list.Element{}, recent: list.New()}
}

// Compile is the package's [Compile] with a memory: documents of equal content
// give the same *Compiled while it stays cached.
func (c *Cache) Compile(doc map[string]any) (*Compiled, error) {
	compiled, err := prepare(doc)
	if err != nil {
		return nil, err
	}
	e, ours := c.enter(ContentHash(compiled.doc))
	if !ours {
		<-e.done // it is compiled already, or at this moment
		return e.compiled, e.err
	}
	defer close(e.done)
	if e.err = compiled.compile(); e.err != nil {
		c.forget(e)
		return nil, e.err
	}
	e.compiled = compiled
	return compiled, nil
}

// Compiled is how many documents were compiled so far, those that failed among them.
func (c *Cache) Compiled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.compiled
}

// enter returns the entry of a document, and whether it is the caller's to compile.
func (c *Cache) enter(hash string) (e *cacheEntry, ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.byHash[hash]; ok {
		c.recent.MoveToFront(at)
		return at.Value.(*cacheEntry), false
	}
	e = &cacheEntry{hash: hash, done: make(chan struct{})}
	c.compiled++
	c.byHash[hash] = c.recent.PushFront(e)
	if c.recent.Len() > cacheSize {
		last := c.recent.Back()
		c.recent.Remove(last)
		delete(c.byHash, last.Value.(*cacheEntry).hash)
	}
	return e, true
}

// forget takes a document out that cannot be compiled.
func (c *Cache) forget(e *cacheEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.byHash[e.hash]; ok && at.Value.(*cacheEntry) == e {
		c.recent.Remove(at)
		delete(c.byHash, e.hash)
	}
}
