package schema

import (
	"container/list"
	"sync"
)

// cacheSize is how many compiled documents a Cache keeps.
const cacheSize = 1024

// Cache compiles each distinct document once. It keeps the most recently used
// ones, keyed by content hash, and is safe for concurrent use. Errors are not
// kept.
type Cache struct {
	mu     sync.Mutex
	byHash map[string]*list.Element
	recent *list.List // of *cacheEntry, the latest first
}

type cacheEntry struct {
	hash     string
	compiled *Compiled
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
	hash := ContentHash(compiled.doc)
	if hit := c.get(hash); hit != nil {
		return hit, nil
	}
	if err := compiled.compile(); err != nil {
		return nil, err
	}
	return c.put(hash, compiled), nil
}

func (c *Cache) get(hash string) *Compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byHash[hash]
	if !ok {
		return nil
	}
	c.recent.MoveToFront(e)
	return e.Value.(*cacheEntry).compiled
}

// put keeps the first of two racing results, so that all callers share one.
func (c *Cache) put(hash string, compiled *Compiled) *Compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byHash[hash]; ok {
		c.recent.MoveToFront(e)
		return e.Value.(*cacheEntry).compiled
	}
	c.byHash[hash] = c.recent.PushFront(&cacheEntry{hash, compiled})
	if c.recent.Len() > cacheSize {
		last := c.recent.Back()
		c.recent.Remove(last)
		delete(c.byHash, last.Value.(*cacheEntry).hash)
	}
	return compiled
}
