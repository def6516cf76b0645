package cancel

import "context"

// tokenKey is the key under which a context carries its token.
type tokenKey struct{}

// Join gives one call a token and a context that end together: the context is
// cancelled, with the cause, when the token, parent or ctx is, and the token
// reports cancelled as soon as the context is done. parent may be nil, then
// only ctx stands above the call. The token is found again with [FromContext].
//
// Call Release on the token when the call is over; it also frees the context,
// with a cause of reason Parent, and does not make the token report cancelled.
//
// In the common nested call ctx descends from the parent's own context and is
// cancelled with it, so that nothing at all is registered with parent.
func Join(ctx context.Context, parent *Token) (context.Context, *Token) {
	return new(Joint).Join(ctx, parent)
}

// Joint is room for what [Join] makes, for whoever has a piece of memory for each
// call anyway. The zero value is ready; it serves one Join, must not be copied, and
// lives as long as the context and the token do.
type Joint struct{ joined }

// Join is the function Join in the room of j.
func (j *Joint) Join(ctx context.Context, parent *Token) (context.Context, *Token) {
	j.Context = ctx
	t := &j.token
	t.finished = &j.finished
	t.ctx, t.stop = context.WithCancelCause(&j.joined)
	if parent != nil && !parent.carriedBy(ctx) {
		t.parent = parent
		parent.adopt(t)
	}
	return t.ctx, t
}

// joined is a token, the context that carries it, and room for the cause of its
// release, in one piece, since every call needs them.
type joined struct {
	context.Context
	token    Token
	finished Cause
}

// Value finds the token.
func (j *joined) Value(key any) any {
	if key == (tokenKey{}) {
		return &j.token
	}
	return j.Context.Value(key)
}

// carriedBy reports whether ctx is certain to be done as soon as t is
// cancelled or released. The channel is compared and not the token that ctx
// carries: context.WithoutCancel keeps the one and drops the other.
func (t *Token) carriedBy(ctx context.Context) bool {
	return t.ctx != nil && !t.detached.Load() && ctx.Done() == t.ctx.Done()
}

// FromContext returns the token of the innermost [Join] that ctx descends from,
// or nil when there is none.
func FromContext(ctx context.Context) *Token {
	t, _ := ctx.Value(tokenKey{}).(*Token)
	return t
}
