package cancel_test

import (
	"testing"

	"github.com/apbus/apbus/cancel"
	"pgregory.net/rapid"
)

// modelToken is the simplest thing that could be a token tree: it knows its
// parent, and cancelling looks at every token there is.
type modelToken struct {
	token               *cancel.Token
	parent              int // -1 for a root
	cancelled, released bool
	cause               error // nil: any cause with reason Parent
}

type modelTree []*modelToken

// below reports whether token i is reached by a cancel of token top.
func (m modelTree) below(i, top int) bool {
	for i != top {
		if m[i].released || m[i].parent < 0 {
			return false
		}
		i = m[i].parent
	}
	return true
}

func (m modelTree) cancelBelow(top int, cause error) {
	for i, x := range m {
		if i != top && m.below(i, top) && !x.cancelled {
			x.cancelled, x.cause = true, cause
		}
	}
}

func TestTokenTreeAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := modelTree{{token: cancel.NewToken(), parent: -1}}
		pick := func(t *rapid.T) int { return rapid.IntRange(0, len(tree)-1).Draw(t, "token") }
		t.Repeat(map[string]func(*rapid.T){
			"new": func(*rapid.T) {
				tree = append(tree, &modelToken{token: cancel.NewToken(), parent: -1})
			},
			"child": func(t *rapid.T) {
				p := pick(t)
				parent := tree[p]
				c := &modelToken{token: parent.token.Child(), parent: p}
				if parent.released {
					c.parent = -1
				}
				if parent.cancelled || parent.released {
					c.cancelled, c.cause = true, parent.cause
				}
				tree = append(tree, c)
			},
			"cancel": func(t *rapid.T) {
				i := pick(t)
				x := tree[i]
				cause := cancel.Because(cancel.Remote, "", "")
				want := !x.cancelled && !x.released
				if got := x.token.Cancel(cause); got != want {
					t.Fatalf("Cancel(%d) = %v, want %v", i, got, want)
				}
				if want {
					x.cancelled, x.cause = true, cause
					tree.cancelBelow(i, cause)
				}
			},
			"reset": func(t *rapid.T) {
				x := tree[pick(t)]
				x.token.Reset()
				if !x.released {
					x.cancelled, x.cause = false, nil
				}
			},
			"release": func(t *rapid.T) {
				i := pick(t)
				tree[i].token.Release()
				if !tree[i].released {
					tree.cancelBelow(i, nil)
					tree[i].released = true
				}
			},
			"": func(t *rapid.T) {
				for i, x := range tree {
					if got := x.token.IsCancelled(); got != x.cancelled {
						t.Fatalf("token %d: IsCancelled = %v, want %v", i, got, x.cancelled)
					}
					if got := closed(x.token.Done()); got != x.cancelled {
						t.Fatalf("token %d: Done closed = %v, want %v", i, got, x.cancelled)
					}
					switch cause := x.token.Cause(); {
					case !x.cancelled:
						if cause != nil || x.token.Check() != nil {
							t.Fatalf("token %d: live with cause %v", i, cause)
						}
					case x.cause != nil && cause != x.cause:
						t.Fatalf("token %d: cause = %v, want %v", i, cause, x.cause)
					case x.cause == nil && cancel.ReasonOf(cause) != cancel.Parent:
						t.Fatalf("token %d: reason = %q, want %q", i, cancel.ReasonOf(cause), cancel.Parent)
					}
				}
			},
		})
	})
}
