package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/gateway"
	"github.com/apbus/apbus/module"
)

func sum(token string) string {
	s := sha256.Sum256([]byte(token))
	return hex.EncodeToString(s[:])
}

func tokensFile(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	writeTokens(t, path, content)
	return path
}

func writeTokens(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func openTokens(t testing.TB, content string) *gateway.Tokens {
	t.Helper()
	tokens, err := gateway.OpenTokens(tokensFile(t, content), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func twoTokens() string {
	return `# people
tokens:
  - sha256: ` + sum("ana's token") + `
    identity: {id: ana, type: user, roles: [ops], attrs: {team: pay, level: 3}}
    scopes: [call, cancel, operate, review, apply]
  - sha256: ` + strings.ToUpper(sum("bot")) + `
    identity: {id: bot, type: service}
    scopes: [call]
`
}

func authenticate(a gateway.Authenticator, authorization ...string) (*gateway.Principal, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil) // from another machine
	for _, v := range authorization {
		r.Header.Add("Authorization", v)
	}
	return a.Authenticate(r)
}

func TestTokens(t *testing.T) {
	tokens := openTokens(t, twoTokens())
	tests := []struct {
		name          string
		authorization []string
		want          string // identity, "" when refused
	}{
		{"known", []string{"Bearer ana's token"}, "ana"},
		{"another", []string{"Bearer bot"}, "bot"},
		{"scheme in lower case", []string{"bearer bot"}, "bot"},
		{"none", nil, ""},
		{"unknown", []string{"Bearer bots"}, ""},
		{"empty", []string{"Bearer "}, ""},
		{"without scheme", []string{"bot"}, ""},
		{"another scheme", []string{"Basic bot"}, ""},
		{"the hash itself", []string{"Bearer " + sum("bot")}, ""},
		{"two headers", []string{"Bearer bot", "Bearer bot"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := authenticate(tokens, tt.authorization...)
			if tt.want == "" {
				if module.CodeOf(err) != module.CodeBusUnauthenticated {
					t.Errorf("got %v, %v", p, err)
				}
				return
			}
			if err != nil || p.Identity.ID() != tt.want {
				t.Errorf("got %v, %v, want %s", p, err, tt.want)
			}
		})
	}
	p, err := authenticate(tokens, "Bearer ana's token")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"id": "ana", "type": "user", "roles": []any{"ops"}, "attrs": map[string]any{"team": "pay", "level": int64(3)}}
	if diff := cmp.Diff(want, p.Identity.Map()); diff != "" {
		t.Errorf("identity (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(gateway.Scopes(), p.Scopes); diff != "" {
		t.Errorf("scopes (-want +got):\n%s", diff)
	}
}

func TestTokensAtTheDoor(t *testing.T) {
	url := serve(t, withInvoker(answering(nil)), func(o *gateway.Options) { o.Auth = openTokens(t, twoTokens()) })
	res := request(t, "POST", url+callURL, "{}")
	res.wantFault(t, 401, module.CodeBusUnauthenticated)
	if got := res.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
		t.Errorf("WWW-Authenticate %q", got)
	}
	if res.header.Get("Apbus-Call") != "" {
		t.Error("a call ID was minted for a stranger")
	}
	if res := request(t, "POST", url+callURL, "{}", "Authorization: Bearer bot"); res.status != 200 {
		t.Errorf("got %d %s", res.status, res.body)
	}
	request(t, "POST", url+"/v1/nodes/n1/drain", "{}", "Authorization: Bearer bot").wantFault(t, 403, module.CodeACLDenied)
	// A token works from anywhere, whatever the host is called.
	if res := request(t, "POST", url+callURL, "{}", "Authorization: Bearer bot", "Host: apbus.example"); res.status != 200 {
		t.Errorf("got %d %s", res.status, res.body)
	}
}

func TestBadTokensFiles(t *testing.T) {
	entry := func(lines ...string) string {
		return "tokens:\n  - sha256: " + sum("x") + "\n    " + strings.Join(lines, "\n    ") + "\n"
	}
	tests := []struct {
		name, content string
		want          []string
	}{
		{"empty", "", []string{"empty"}},
		{"broken", "tokens: [", []string{"yaml"}},
		{"no mapping", "- a", []string{"line 1"}},
		{"unknown key", "token: []", []string{"line 1", `"token"`}},
		{"no list", "tokens: {}", []string{"line 1", "list"}},
		{"null", "tokens:", []string{"line 1", "list"}},
		{"unknown key in an entry", entry("identity: {id: a}", "scope: [call]"), []string{"line 4", `"scope"`}},
		{"unknown key in an identity", entry("identity: {id: a, role: x}", "scopes: [call]"), []string{"line 3", `"role"`}},
		{"unknown scope", entry("identity: {id: a}", "scopes: [call, admin]"), []string{"line 4", "scope"}},
		{"no identity", entry("scopes: [call]"), []string{"line 2", "identity"}},
		{"null identity", entry("identity:", "scopes: [call]"), []string{"line 3"}},
		{"no id", entry("identity: {type: user}", "scopes: [call]"), []string{"line 3", "id"}},
		{"empty id", entry(`identity: {id: ""}`, "scopes: [call]"), []string{"line 3", "id"}},
		{"id is a number", entry("identity: {id: 7}", "scopes: [call]"), []string{"line 3", "id"}},
		{"roles are text", entry("identity: {id: a, roles: ops}", "scopes: [call]"), []string{"line 3", "roles"}},
		{"no scopes", entry("identity: {id: a}"), []string{"line 2", "scopes"}},
		{"scopes are text", entry("identity: {id: a}", "scopes: call"), []string{"line 2", "scopes"}},
		{"key twice", entry("identity: {id: a}", "identity: {id: b}", "scopes: [call]"), []string{"line 4", "twice"}},
		{"no sum", "tokens:\n  - identity: {id: a}\n    scopes: [call]\n", []string{"line 2", "sha256"}},
		{"short sum", "tokens:\n  - sha256: 9f86d0\n    identity: {id: a}\n    scopes: [call]\n", []string{"line 2", "64"}},
		{"long sum", "tokens:\n  - sha256: " + sum("x") + "00\n    identity: {id: a}\n    scopes: [call]\n", []string{"line 2", "64"}},
		{"not hex", "tokens:\n  - sha256: " + strings.Repeat("z", 64) + "\n    identity: {id: a}\n    scopes: [call]\n", []string{"line 2", "64"}},
		{"the same token twice", entry("identity: {id: a}", "scopes: [call]") + "  - {sha256: " + sum("x") + ", identity: {id: b}, scopes: [call]}\n", []string{"line 5", "line 2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := tokensFile(t, tt.content)
			_, err := gateway.OpenTokens(path, nil)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, part := range append(tt.want, path) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("message %q lacks %q", err, part)
				}
			}
		})
	}
	if _, err := gateway.OpenTokens(filepath.Join(t.TempDir(), "none"), nil); err == nil {
		t.Error("a missing file was accepted")
	}
}

// lockedBuffer may be written and read at once.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestTokensFollowTheFile(t *testing.T) {
	path := tokensFile(t, twoTokens())
	synctest.Test(t, func(t *testing.T) {
		var logs lockedBuffer
		tokens, err := gateway.OpenTokens(path, slog.New(slog.NewTextHandler(&logs, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { tokens.Watch(ctx, time.Second) })
		defer wg.Wait()
		defer stop()
		admitted := func(token string) bool {
			_, err := authenticate(tokens, "Bearer "+token)
			return err == nil
		}
		next := func() {
			time.Sleep(time.Second)
			synctest.Wait()
		}

		next()
		if !admitted("bot") {
			t.Error("an unchanged file forgot a token")
		}
		one, _, _ := strings.Cut(twoTokens(), "  - sha256: "+strings.ToUpper(sum("bot")))
		writeTokens(t, path, one)
		next()
		if admitted("bot") || !admitted("ana's token") {
			t.Errorf("after a removal: bot %v, ana %v", admitted("bot"), admitted("ana's token"))
		}
		// A file that cannot be used changes nothing and is told once.
		writeTokens(t, path, "tokens: [{sha256: x}]")
		next()
		next()
		next()
		if !admitted("ana's token") {
			t.Error("a bad file locked everybody out")
		}
		if n := strings.Count(logs.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d complaints, want 1:\n%s", n, logs.String())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		next()
		if n := strings.Count(logs.String(), "level=ERROR"); n != 2 {
			t.Errorf("%d complaints, want 2:\n%s", n, logs.String())
		}
		writeTokens(t, path, twoTokens())
		next()
		if !admitted("bot") {
			t.Error("a token that came back is not admitted")
		}
	})
}

func FuzzTokensFile(f *testing.F) {
	f.Add(twoTokens())
	f.Add("tokens: &a [*a]")
	f.Add("tokens: [{sha256: *x}]")
	f.Add("<<: {tokens: []}")
	f.Add("tokens: [{identity: {id: a, attrs: {1: b, .nan: .inf}}}]")
	f.Fuzz(func(t *testing.T, content string) {
		tokens, err := gateway.OpenTokens(tokensFile(t, content), nil)
		if err != nil {
			return
		}
		if p, err := authenticate(tokens, "Bearer guess"); err == nil && !strings.Contains(content, sum("guess")) {
			t.Errorf("a guessed token was admitted as %v", p.Identity.Map())
		}
	})
}
