package jetstream

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	natsjs "github.com/nats-io/nats.go/jetstream"
)

// Who asked for a number of replicas hears that a stream has another; who did not
// has no opinion.
func TestDriftOfReplicas(t *testing.T) {
	for _, tt := range []struct {
		asked, has int
		want       []Drift
	}{
		{0, 1, nil},
		{0, 3, nil},
		{3, 3, nil},
		{1, 3, []Drift{{Setting: "num_replicas", Want: "1", Got: "3"}}},
		{3, 1, []Drift{{Setting: "num_replicas", Want: "3", Got: "1"}}},
	} {
		got := compare(natsjs.StreamConfig{Replicas: max(1, tt.asked)}, natsjs.StreamConfig{Replicas: tt.has}, tt.asked)
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("asked for %d, has %d:\n%s", tt.asked, tt.has, d)
		}
	}
}
