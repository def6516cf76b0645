package examples

import (
	"context"
	"fmt"
	"os"

	"github.com/apbus/apbus/module"
)

type effectIn struct {
	Key string `json:"key" pattern:"^\\S+$" maxLength:"256" description:"What the effect is counted by; no white space"`
	MS  int64  `json:"ms,omitempty" minimum:"0" description:"How long to sleep after the effect, in milliseconds"`
}

type effectOut struct {
	Count int64 `json:"count" minimum:"1" description:"How often this node had the effect for the key"`
}

func demoEffect(node, log string) module.Module {
	counts := newTally()
	return module.New("demo.effect", "Have an effect that can be counted",
		func(ctx context.Context, in effectIn) (effectOut, error) {
			if err := pause(ctx, 0); err != nil {
				return effectOut{}, err
			}
			attempt := 0
			if c := module.FromContext(ctx); c != nil {
				attempt = c.Call().Attempt
			}
			if err := appendLine(log, fmt.Sprintf("%s %d %s\n", in.Key, attempt, node)); err != nil {
				return effectOut{}, err
			}
			count, _ := counts.add(in.Key, 0)
			if err := pause(ctx, milliseconds(in.MS)); err != nil {
				return effectOut{}, err
			}
			return effectOut{Count: count}, nil
		},
		module.WithName("Effect"),
		module.WithDocumentation("Appends one line, \"key attempt node\", to the node's effect log, then sleeps. The attempt is 0 for a call that did not come over the bus."),
		module.WithTags("demo"),
		module.WithExamples(module.Example{Title: "Once", Inputs: map[string]any{"key": "k1"}, Output: map[string]any{"count": int64(1)}}),
	)
}

// appendLine writes line at the end of the file in one write, so that lines of
// several processes do not mix. Without a path it does nothing.
func appendLine(path, line string) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open effect log: %w", err)
	}
	if _, err = f.WriteString(line); err != nil {
		_ = f.Close() // the write has failed already
		return fmt.Errorf("append to effect log: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close effect log: %w", err)
	}
	return nil
}
