package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// Scope is something a caller may be allowed to do with the API. Whether a
// module may be called is decided by the ACL of its owner, not here.
type Scope string

// The scopes.
const (
	ScopeCall    Scope = "call"    // call and check modules, look at modules, nodes and calls
	ScopeCancel  Scope = "cancel"  // cancel calls
	ScopeOperate Scope = "operate" // drain nodes, steer queues, see the outcomes of others
	ScopeReview  Scope = "review"  // decide approvals and recommendations
	ScopeApply   Scope = "apply"   // apply and roll back recommendations
)

// Scopes lists every scope.
func Scopes() []Scope {
	return []Scope{ScopeCall, ScopeCancel, ScopeOperate, ScopeReview, ScopeApply}
}

// Principal is who makes a request.
type Principal struct {
	// Identity is who the calls act for; nil when nobody said.
	Identity *module.Identity
	Scopes   []Scope
}

// May reports whether the principal has the scope.
func (p *Principal) May(s Scope) bool { return slices.Contains(p.Scopes, s) }

// by names the principal in cancel notices and logs.
func (p *Principal) by(otherwise string) string {
	if p.Identity == nil {
		return otherwise
	}
	return p.Identity.ID()
}

// Authenticator says who makes a request. Its errors are coded:
// BUS_UNAUTHENTICATED or ACL_DENIED. It runs before the body is read and is
// called from many goroutines.
type Authenticator interface {
	Authenticate(r *http.Request) (*Principal, error)
}

// Loopback is the authenticator of a gateway without tokens: it admits direct
// peers on this machine, with null identity and all scopes but review and
// apply.
//
// A peer on loopback may still speak for somebody else: a proxy for the world,
// or a browser whose page made a foreign name point here. Hence a request that
// was forwarded, or that names a host other than this machine, is refused.
type Loopback struct{}

// Authenticate implements [Authenticator].
func (Loopback) Authenticate(r *http.Request) (*Principal, error) {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	switch {
	case err != nil || !peer.Addr().Unmap().IsLoopback():
		return nil, denied("not_loopback", "without a tokens file only callers on this machine are admitted")
	case r.Header.Get("Forwarded") != "" || r.Header.Get("X-Forwarded-For") != "":
		return nil, denied("not_loopback", "without a tokens file forwarded requests are not admitted")
	case !IsLoopbackHost(r.Host):
		return nil, denied("not_loopback", "without a tokens file the request must name this machine as its host")
	}
	return &Principal{Scopes: []Scope{ScopeCall, ScopeCancel, ScopeOperate}}, nil
}

// LocalOr admits requests without an Authorization header as [Loopback] does, and
// has Tokens decide about all others: a token that is wrong is never taken for
// none. It is for an installation on one machine, whose callers need no token and
// whose reviewers do.
type LocalOr struct{ Tokens Authenticator }

// Authenticate implements [Authenticator].
func (a LocalOr) Authenticate(r *http.Request) (*Principal, error) {
	if len(r.Header.Values("Authorization")) > 0 {
		return a.Tokens.Authenticate(r)
	}
	p, err := Loopback{}.Authenticate(r)
	if err != nil {
		return nil, module.Errorf(module.CodeBusUnauthenticated, "a bearer token is needed")
	}
	return p, nil
}

// IsLoopbackHost reports whether host, with or without a port, is localhost or
// a loopback address.
func IsLoopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
