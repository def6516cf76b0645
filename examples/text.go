package examples

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/apbus/apbus/module"
)

type wordcountIn struct {
	Text string `json:"text" description:"The text to count; tens of megabytes are fine"`
}

type wordcountOut struct {
	Words int         `json:"words" minimum:"0" description:"Runs of characters that are not white space"`
	Lines int         `json:"lines" minimum:"0" description:"Newlines, plus one for a last line without one"`
	Bytes int         `json:"bytes" minimum:"0" description:"Bytes of the text in UTF-8"`
	Top   []wordTally `json:"top" maxItems:"10" description:"The most frequent words, ties in the order of the words"`
}

type wordTally struct {
	Word  string `json:"word" description:"The word, case kept"`
	Count int    `json:"count" minimum:"1" description:"How often it occurs"`
}

// topWords is how many words text.wordcount lists.
const topWords = 10

func textWordcount() module.Module {
	return module.New("text.wordcount", "Count the words, lines and bytes of a text",
		func(ctx context.Context, in wordcountIn) (wordcountOut, error) { return wordcount(ctx, in.Text) },
		module.WithName("Word count"),
		module.WithTags("text"),
		module.WithAnnotations(module.Annotations{Readonly: true, Idempotent: true, ClosedWorld: true}),
		module.WithExamples(module.Example{
			Title:  "Six words",
			Inputs: map[string]any{"text": "to be or\nnot to be\n"},
			Output: map[string]any{
				"words": int64(6), "lines": int64(2), "bytes": int64(19),
				"top": []any{
					map[string]any{"word": "be", "count": int64(2)},
					map[string]any{"word": "to", "count": int64(2)},
					map[string]any{"word": "not", "count": int64(1)},
					map[string]any{"word": "or", "count": int64(1)},
				},
			},
		}),
	)
}

// wordcount keeps the words as slices of text, so that it needs memory for the
// distinct words only.
func wordcount(ctx context.Context, text string) (wordcountOut, error) {
	out := wordcountOut{Bytes: len(text), Lines: strings.Count(text, "\n")}
	if text != "" && text[len(text)-1] != '\n' {
		out.Lines++
	}
	// A stop is looked for once in so many words, which is well under a millisecond.
	const between = 1 << 14
	counts := map[string]int{}
	for rest := text; ; out.Words++ {
		if out.Words%between == 0 && ctx.Err() != nil {
			return wordcountOut{}, context.Cause(ctx)
		}
		word, after := nextWord(rest)
		if word == "" {
			break
		}
		counts[word]++
		rest = after
	}
	out.Top = mostFrequent(counts)
	return out, nil
}

// nextWord returns the first word of s, "" when there is none, and what follows it.
func nextWord(s string) (word, rest string) {
	start := -1
	for i := 0; i < len(s); {
		c, size := s[i], 1
		var space bool
		if c < utf8.RuneSelf {
			space = c == ' ' || (c >= '\t' && c <= '\r')
		} else {
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			space = unicode.IsSpace(r)
		}
		switch {
		case space && start >= 0:
			return s[start:i], s[i+size:]
		case !space && start < 0:
			start = i
		}
		i += size
	}
	if start < 0 {
		return "", ""
	}
	return s[start:], ""
}

// mostFrequent keeps a sorted list of the best while it looks at every word once.
func mostFrequent(counts map[string]int) []wordTally {
	best := make([]wordTally, 0, topWords+1)
	for word, n := range counts {
		if len(best) == topWords && !precedes(word, n, best[topWords-1]) {
			continue
		}
		at := len(best)
		for at > 0 && precedes(word, n, best[at-1]) {
			at--
		}
		best = append(best, wordTally{})
		copy(best[at+1:], best[at:])
		best[at] = wordTally{Word: word, Count: n}
		if len(best) > topWords {
			best = best[:topWords]
		}
	}
	// Copies let go of the text that the words are slices of.
	for i := range best {
		best[i].Word = strings.Clone(best[i].Word)
	}
	return best
}

func precedes(word string, n int, other wordTally) bool {
	return n > other.Count || (n == other.Count && word < other.Word)
}
