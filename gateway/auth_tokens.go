package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apbus/apbus/module"
)

// Tokens is the authenticator over a tokens file, which holds the SHA-256 of
// each bearer token and never the token. Watch makes it follow the file.
type Tokens struct {
	path    string
	log     *slog.Logger
	current atomic.Pointer[tokenSet]
}

// tokenSet is one reading of the file; it does not change.
type tokenSet struct {
	content []byte
	entries []tokenEntry
}

type tokenEntry struct {
	sum       [sha256.Size]byte
	principal *Principal
}

// OpenTokens reads a tokens file. The error names the file and the line.
func OpenTokens(path string, log *slog.Logger) (*Tokens, error) {
	if log == nil {
		log = slog.Default()
	}
	t := &Tokens{path: path, log: log}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokens file: %w", err)
	}
	return t, t.load(content)
}

// load takes content over when it is valid.
func (t *Tokens) load(content []byte) error {
	entries, err := parseTokens(content)
	if err != nil {
		return fmt.Errorf("tokens file %s: %w", t.path, err)
	}
	t.current.Store(&tokenSet{content: content, entries: entries})
	return nil
}

// Watch reads the file again every interval, until ctx is done. What is
// removed stops working with the next reading. A file that cannot be read or
// is invalid is logged once and changes nothing, so that a half-written file
// does not lock everybody out.
func (t *Tokens) Watch(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	complaint := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := t.reload()
		switch {
		case err != nil && err.Error() != complaint:
			complaint = err.Error()
			t.log.Error("tokens file cannot be used, the last good one stays", "cause", err)
		case err == nil:
			complaint = ""
			if changed {
				t.log.Info("tokens file taken over", "count", len(t.current.Load().entries))
			}
		}
	}
}

// reload compares the content, not its time, which a quick second write may
// leave as it was.
func (t *Tokens) reload() (changed bool, err error) {
	content, err := os.ReadFile(t.path)
	if err != nil {
		return false, fmt.Errorf("tokens file: %w", err)
	}
	if bytes.Equal(content, t.current.Load().content) {
		return false, nil
	}
	return true, t.load(content)
}

// Authenticate implements [Authenticator] with the bearer token of the
// Authorization header.
func (t *Tokens) Authenticate(r *http.Request) (*Principal, error) {
	token, err := bearer(r.Header)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(token))
	var found *Principal
	for _, e := range t.current.Load().entries { // all of them, so that time tells nothing
		if subtle.ConstantTimeCompare(sum[:], e.sum[:]) == 1 {
			found = e.principal
		}
	}
	if found == nil {
		return nil, module.Errorf(module.CodeBusUnauthenticated, "the bearer token is not known")
	}
	return found, nil
}

func bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", module.Errorf(module.CodeBusUnauthenticated, "a bearer token is needed")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", module.Errorf(module.CodeBusUnauthenticated, "the Authorization header must be one bearer token")
	}
	return token, nil
}
