package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// devTokens are the two tokens of the installation.
type devTokens struct {
	file                     string // for the router's --tokens
	callerFile, reviewerFile string // hold one token each
	caller, reviewer         string
}

// writeTokens makes the tokens, or keeps those that are there already, so that
// what somebody exported goes on working. The files are readable by their owner
// only.
func writeTokens(dir string) (*devTokens, error) {
	t := &devTokens{
		file:       filepath.Join(dir, "tokens.yaml"),
		callerFile: filepath.Join(dir, "caller.token"), reviewerFile: filepath.Join(dir, "reviewer.token"),
	}
	var err error
	if t.caller, err = tokenIn(t.callerFile); err != nil {
		return nil, err
	}
	if t.reviewer, err = tokenIn(t.reviewerFile); err != nil {
		return nil, err
	}
	content := fmt.Sprintf(`# Tokens for local use; the router knows only their digests.
tokens:
  - sha256: %s
    identity: {id: caller, type: user, roles: [caller]}
    scopes: [call, cancel, operate]
  - sha256: %s
    identity: {id: reviewer, type: user, roles: [reviewer]}
    scopes: [call, cancel, operate, review, apply]
`, digest(t.caller), digest(t.reviewer))
	return t, writePrivate(t.file, content)
}

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func tokenIn(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		if token := strings.TrimSpace(string(raw)); len(token) >= 20 {
			return token, os.Chmod(path, 0o600)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read a token: %w", err)
	}
	token := rand.Text()
	return token, writePrivate(path, token+"\n")
}

// writePrivate replaces a file in one step.
func writePrivate(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // made with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to tell
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
