package loop

import "math"

// histogram counts positive numbers in buckets of equal ratio, 1 % wide, so that
// quantiles are known to 1 % in little memory and in any order of adding.
type histogram struct {
	n       int
	buckets map[int16]int
}

const bucketRatio = 1.01

func (h *histogram) add(v float64) {
	if math.IsNaN(v) || v < 0 {
		return
	}
	if h.buckets == nil {
		h.buckets = map[int16]int{}
	}
	h.n++
	h.buckets[bucketOf(v)]++
}

func bucketOf(v float64) int16 {
	const smallest, largest = 1e-6, 1e12
	v = min(max(v, smallest), largest)
	return int16(math.Floor(math.Log(v) / math.Log(bucketRatio)))
}

// quantile is about the smallest number that a share of q of all numbers does not
// exceed, 0 when there are none.
func (h *histogram) quantile(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	want := int(math.Ceil(q * float64(h.n)))
	low, high := int16(math.MaxInt16), int16(math.MinInt16)
	for b := range h.buckets {
		low, high = min(low, b), max(high, b)
	}
	seen := 0
	for b := low; ; b++ {
		if seen += h.buckets[b]; seen >= want || b == high {
			return math.Pow(bucketRatio, float64(b)+0.5)
		}
	}
}
