package examples

import (
	"context"
	"strings"

	"github.com/apbus/apbus/module"
)

type wordsIn struct {
	Text    string `json:"text" description:"The text to take apart"`
	DelayMS int64  `json:"delay_ms,omitempty" minimum:"0" description:"How long to wait before each word, in milliseconds"`
}

// wordPart is one chunk of the stream, wordsTotal the last.
type wordPart struct {
	Index int    `json:"index"`
	Word  string `json:"word"`
}

type wordsTotal struct {
	Count int `json:"count"`
}

// wordsOut is the whole: the last word, and how many there were. A text without
// words has no last one.
type wordsOut struct {
	Index int    `json:"index,omitempty" minimum:"0" description:"Place of the word, counted from 0"`
	Word  string `json:"word,omitempty" description:"The word, a run of characters that are not white space"`
	Count int    `json:"count" minimum:"0" description:"How many words the text has"`
}

func textWords() module.Module {
	return module.NewStream[wordsIn, wordsOut]("text.words", "Stream the words of a text, one by one",
		func(ctx context.Context, in wordsIn, send func(any) error) error {
			count := 0
			for word := range strings.FieldsSeq(in.Text) {
				if err := pause(ctx, milliseconds(in.DelayMS)); err != nil {
					return err
				}
				if err := send(wordPart{Index: count, Word: word}); err != nil {
					return err
				}
				count++
			}
			return send(wordsTotal{Count: count})
		},
		module.WithName("Words"),
		module.WithDocumentation("Each chunk is {index, word}, the last one {count}. A plain call returns them merged: the last word and the count."),
		module.WithTags("text"),
		module.WithAnnotations(module.Annotations{Readonly: true, ClosedWorld: true}),
		module.WithExamples(module.Example{
			Title:  "Three words",
			Inputs: map[string]any{"text": "to be or"},
			Output: map[string]any{"index": int64(2), "word": "or", "count": int64(3)},
		}),
	)
}
