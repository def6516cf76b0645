package backend

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/apbus/apbus/loop"
)

// Embedder makes vectors of texts with the embeddings of an OpenAI-compatible API. It
// is safe for concurrent use.
type Embedder struct{ endpoint }

var _ loop.Embedder = (*Embedder)(nil)

// NewEmbedder makes an embedder; requests go to <BaseURL>/embeddings. It makes none
// itself.
func NewEmbedder(o HTTPOptions) (*Embedder, error) {
	e, err := newEndpoint(o, "/embeddings")
	if err != nil {
		return nil, err
	}
	return &Embedder{e}, nil
}

// Embed makes one request for all texts. The error, LOOP_BACKEND, never holds the key
// or a text.
func (e *Embedder) Embed(ctx context.Context, texts []string) ([][]float64, error) {
	ctx, stop := context.WithTimeoutCause(ctx, e.o.Timeout, errors.New("timed out"))
	defer stop()
	answer, err := e.send(ctx, map[string]any{"model": e.o.Model, "input": texts, "encoding_format": "float"})
	if err != nil {
		return nil, failed("the request for embeddings failed", err)
	}
	var reply struct {
		Data []struct {
			Index     int       `json:"index"`
			Embedding []float64 `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return nil, failed("the embeddings cannot be read", err)
	}
	vectors := make([][]float64, len(texts))
	for _, d := range reply.Data {
		if d.Index < 0 || d.Index >= len(vectors) || vectors[d.Index] != nil {
			return nil, failed("the embeddings are not those of the texts", nil)
		}
		vectors[d.Index] = d.Embedding
	}
	return vectors, nil
}
