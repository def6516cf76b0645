package contextwire_test

import (
	"testing"

	"github.com/apbus/apbus/contextwire"
)

// People hand call IDs to a command line, which would take one with a leading
// "-" for a flag.
func TestNewCallIDIsNoFlag(t *testing.T) {
	seen := map[string]bool{}
	for range 5000 { // one in 64 would begin with it
		id := contextwire.NewCallID()
		if !contextwire.ValidCallID(id) || id[0] == '-' || seen[id] {
			t.Fatalf("call ID %q is not valid, begins like a flag, or was there before", id)
		}
		seen[id] = true
	}
}
