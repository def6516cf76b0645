package contextwire_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/apbus/apbus/contextwire"
	"github.com/apbus/apbus/module"
)

// allocated returns the bytes that f allocates. Tests that use it do not run in
// parallel.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// ground is what a refusal and the measuring itself may cost.
const ground = 16 << 10

// TestDecodeMemory checks the promise of Limits.MaxOverhead: whatever the bytes,
// decoding allocates at most 8 × the body and the overhead. An accepted body is
// measured with the smallest overhead that accepts it, so that the estimate itself
// is under test.
func TestDecodeMemory(t *testing.T) {
	list := func(n int, item string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + "]"
	}
	wide := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":%d`, i, i*1000)
		}
		return "{" + b.String()[1:] + "}"
	}
	packed := func(text string) []byte {
		v, err := contextwire.Decode(contextwire.JSON, []byte(text), contextwire.Limits{MaxOverhead: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		body, err := contextwire.Encode(contextwire.MsgPack, v)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	texts := map[string]string{
		"small numbers": list(20_000, "1"), "large numbers": list(10_000, "123456789"), "floats": list(10_000, "1.5"),
		"nulls": list(10_000, "null"), "empty strings": list(10_000, `""`), "letters": list(10_000, `"ab"`),
		"strings": list(10_000, `"a string of some forty characters, or so"`), "empty maps": list(10_000, "{}"),
		"empty lists": list(10_000, "[]"), "maps of one": list(5_000, `{"a":1}`), "records": list(4_000, `{"id":12345,"name":"widget","qty":3}`),
		"escapes": list(1_000, `"`+strings.Repeat(`\n`, 100)+`"`), "growing escapes": growing(`\n`, 400), "one long string": `"` + strings.Repeat("x", 1<<17) + `"`,
		"one long escaped string": `"` + strings.Repeat(`\u00e9`, 1<<14) + `"`, "wide map": wide(10_000), "nine entries": list(1_000, wide(9)),
		"lists of lists": list(5_000, "[[[]]]"), "small": `{"a":[1,2,3]}`,
	}
	for name, text := range texts {
		for ct, body := range map[contextwire.ContentType][]byte{contextwire.JSON: []byte(text), contextwire.MsgPack: packed(text)} {
			t.Run(name+" "+string(ct), func(t *testing.T) { measure(t, ct, body) })
		}
	}
	hostile := []struct {
		name string
		ct   contextwire.ContentType
		body []byte
	}{
		{"list of 4 Gi", contextwire.MsgPack, []byte("\xdd\xff\xff\xff\xff\xc0")},
		{"map of 4 Gi", contextwire.MsgPack, []byte("\xdf\xff\xff\xff\xff\xa0\xc0")},
		{"string of 4 Gi", contextwire.MsgPack, []byte("\xdb\xff\xff\xff\xff")},
		{"bin of 4 Gi", contextwire.MsgPack, []byte("\xc6\xff\xff\xff\xff")},
		{"nested lies", contextwire.MsgPack, bytes.Repeat([]byte("\xdc\xff\xff"), 60)},
		{"million empty maps", contextwire.MsgPack, append([]byte("\xdd\x00\x0f\x42\x40"), bytes.Repeat([]byte{0x80}, 1_000_000)...)},
		{"million empty maps in JSON", contextwire.JSON, []byte(list(1_000_000, "{}"))},
		{"deep", contextwire.JSON, bytes.Repeat([]byte{'['}, 1<<20)},
		{"commas", contextwire.JSON, bytes.Repeat([]byte{','}, 1<<20)},
		{"broken at the end", contextwire.JSON, []byte(list(50_000, "{}") + "x")},
	}
	for _, tt := range hostile {
		t.Run(tt.name, func(t *testing.T) {
			lim := contextwire.Limits{MaxOverhead: 1}
			var err error
			got := allocated(func() { _, err = contextwire.Decode(tt.ct, tt.body, lim) })
			if err == nil {
				t.Error("accepted")
			}
			if limit := 8*len(tt.body) + ground; got > limit {
				t.Errorf("allocated %d bytes for a body of %d", got, len(tt.body))
			}
		})
	}
}

// growing makes strings of escapes, each longer than the one before.
func growing(escape string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"` + strings.Repeat(escape, i) + `"`)
	}
	return "[" + b.String()[1:] + "]"
}

func measure(t *testing.T, ct contextwire.ContentType, body []byte) {
	accepts := func(overhead int) bool {
		_, err := contextwire.Decode(ct, body, contextwire.Limits{MaxOverhead: overhead})
		if err != nil && module.AsError(err).Details["limit"] != "memory" {
			t.Fatal(err)
		}
		return err == nil
	}
	low, high := 1, 1<<24
	for low < high {
		if mid := (low + high) / 2; accepts(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	got := allocated(func() { accepts(low) })
	limit := 8*len(body) + low + ground
	if raceEnabled {
		limit += limit / 4
	}
	if got > limit {
		t.Errorf("allocated %d bytes for a body of %d with an overhead of %d, %d too many", got, len(body), low, got-limit)
	}
}

// TestOrdinaryDataFits: what real calls send must not run into the memory limit.
func TestOrdinaryDataFits(t *testing.T) {
	rows := make([]any, 50_000)
	for i := range rows {
		rows[i] = map[string]any{"x": i, "y": i * 2}
	}
	numbers := make([]any, 1_000_000)
	for i := range numbers {
		numbers[i] = i % 100
	}
	for name, v := range map[string]any{
		"50,000 points": rows, "1,000,000 small numbers": numbers, "text of 48 MiB": strings.Repeat("word ", 10_000_000),
	} {
		for _, ct := range codecs {
			body, err := contextwire.Encode(ct, v)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := contextwire.Decode(ct, body, contextwire.Limits{}); err != nil {
				t.Errorf("%s %s: %v", name, ct, err)
			}
		}
	}
}
