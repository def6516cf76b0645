package contextwire_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/apbus/apbus/contextwire"
)

func latency(pairs ...int) []contextwire.LatencyBucket {
	var out []contextwire.LatencyBucket
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, contextwire.LatencyBucket{UpTo: time.Duration(pairs[i]) * time.Millisecond, Count: int64(pairs[i+1])})
	}
	return out
}

func TestQuantile(t *testing.T) {
	for _, tt := range []struct {
		name    string
		buckets []contextwire.LatencyBucket
		q       float64
		want    int
	}{
		{"no calls", nil, .5, 0},
		{"one call, low", latency(7, 1), 0, 7},
		{"one call, high", latency(7, 1), 1, 7},
		{"the median of two is the first", latency(1, 1, 9, 1), .5, 1},
		{"just above half", latency(1, 50, 9, 51), .5, 9},
		{"99 of 100", latency(1, 99, 9, 1), .99, 1},
		{"98 of 100", latency(1, 98, 9, 2), .99, 9},
		{"the largest", latency(1, 99, 9, 1), 1, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := contextwire.Quantile(tt.buckets, tt.q); got != time.Duration(tt.want)*time.Millisecond {
				t.Errorf("got %v, want %d ms", got, tt.want)
			}
		})
	}
}

func TestLatencyArithmetic(t *testing.T) {
	a, b := latency(1, 5, 3, 2), latency(1, 5, 2, 1, 3, 9)
	for _, tt := range []struct {
		name      string
		got, want []contextwire.LatencyBucket
	}{
		{"since", contextwire.LatencySince(b, a), latency(2, 1, 3, 7)},
		{"since nothing", contextwire.LatencySince(b, nil), b},
		{"a process that began anew", contextwire.LatencySince(a, b), a},
		{"sum", contextwire.LatencySum(a, b), latency(1, 10, 2, 1, 3, 11)},
	} {
		if d := cmp.Diff(tt.want, tt.got); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
	}
}
