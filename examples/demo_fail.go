package examples

import (
	"context"

	"github.com/apbus/apbus/module"
)

type failIn struct {
	Code      string `json:"code,omitempty" pattern:"^[A-Z][A-Z0-9_]{0,63}$" description:"The error code; MODULE_EXECUTE_ERROR when absent"`
	Message   string `json:"message,omitempty" maxLength:"4096" description:"The error message"`
	Retryable *bool  `json:"retryable,omitempty" description:"What the error says about trying again; the code's default when absent"`
	Times     *int64 `json:"times,omitempty" minimum:"0" description:"With key: how often to fail before succeeding"`
	Key       string `json:"key,omitempty" maxLength:"256" description:"With times: what the failures are counted by, on this node"`
}

type failOut struct {
	Failures int64 `json:"failures" minimum:"0" description:"How often the module failed for the key before"`
}

func demoFail() module.Module {
	failures := newTally()
	return module.New("demo.fail", "Fail on purpose",
		func(_ context.Context, in failIn) (failOut, error) {
			if in.Key != "" && in.Times != nil {
				if *in.Times == 0 {
					return failOut{}, nil
				}
				if n, failed := failures.add(in.Key, *in.Times); !failed {
					return failOut{Failures: n}, nil
				}
			}
			return failOut{}, in.failure()
		},
		module.WithName("Fail"),
		module.WithDocumentation("Fails with the given error. With times and key it fails that often for the key on this node and then succeeds."),
		module.WithTags("demo"),
		module.WithExamples(
			module.Example{Title: "A coded failure", Inputs: map[string]any{"code": "SHOP_CLOSED", "message": "come back tomorrow", "retryable": true}},
			module.Example{Title: "Twice, then success", Inputs: map[string]any{"times": int64(2), "key": "k1"}},
		),
	)
}

func (in failIn) failure() error {
	code, message := module.Code(in.Code), in.Message
	if code == "" {
		code = module.CodeModuleExecuteError
	}
	if message == "" {
		message = "failed as asked"
	}
	err := module.Errorf(code, "%s", message)
	if in.Retryable != nil {
		err = err.WithRetryable(module.TriOf(*in.Retryable))
	}
	return err
}
