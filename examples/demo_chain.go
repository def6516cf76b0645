package examples

import (
	"context"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

type chainIn struct {
	Path  []string       `json:"path" minLength:"1" maxLength:"192" maxItems:"64" description:"The modules to call, one inside the other; all but the last are chain modules"`
	Input map[string]any `json:"input,omitempty" description:"The inputs of the last module of the path"`
}

type chainOut struct {
	Hops []hop          `json:"hops" description:"The chain modules in the order they were called, this one first"`
	Last map[string]any `json:"last" description:"The output of the last module, empty when a chain module was the last"`
}

// nextHops is what a chain module reads of the output of the next one.
type nextHops struct {
	Hops []hop          `json:"hops"`
	Last map[string]any `json:"last"`
}

func chain(id, node string) module.Module {
	return module.New(id, "Call modules one inside the other",
		func(ctx context.Context, in chainIn) (chainOut, error) { return follow(ctx, node, in) },
		module.WithName("Chain"),
		module.WithDocumentation("Calls the first module of the path. A chain module there gets the rest of the path and continues it; any other module must be the last and gets the input."),
		module.WithTags(module.FirstSegment(id)),
		module.WithExamples(
			module.Example{Title: "Nobody else", Inputs: map[string]any{"path": []any{}}},
		),
	)
}

func follow(ctx context.Context, node string, in chainIn) (chainOut, error) {
	self, err := thisHop(ctx, node)
	if err != nil {
		return chainOut{}, err
	}
	out := chainOut{Hops: []hop{self}}
	if len(in.Path) == 0 {
		return out, nil
	}
	next, rest := in.Path[0], in.Path[1:]
	if isChain(next) {
		more, err := module.CallAs[nextHops](ctx, next, chainIn{Path: rest, Input: in.Input})
		if err != nil {
			return chainOut{}, err
		}
		out.Hops, out.Last = append(out.Hops, more.Hops...), more.Last
		return out, nil
	}
	if len(rest) > 0 {
		return chainOut{}, module.Errorf(module.CodeInvalidInput,
			"only a chain module continues a path: %d more follow a module that is none", len(rest)).
			WithDetail("module_id", next)
	}
	out.Last, err = module.Call(ctx, next, in.Input)
	return out, err
}

// isChain reports whether id is one of the chain modules of this package.
func isChain(id string) bool {
	prefix, ok := strings.CutSuffix(id, ".chain")
	return ok && slices.Contains([]string{"demo", "near", "far"}, prefix)
}
