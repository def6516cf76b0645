package gateway

import (
	"context"
	"time"

	"github.com/apbus/apbus/loop"
)

// Loop is what the gateway asks of the loop, whose engine has the first four parts.
// Errors are coded.
type Loop interface {
	LoopQueue
	LoopReview
	LoopRunner
	LoopLessons
}

// LoopQueue shows recommendations. What a crash left half done is finished by whoever
// looks at it.
type LoopQueue interface {
	// Queue is the queue in its order, and how many entries cannot be read.
	Queue(ctx context.Context, now time.Time) (cases []*loop.Case, bad int, err error)
	Settled(ctx context.Context, now time.Time, hash string) (*loop.Case, error)
	// Cited is the evidence of a recommendation as far as it is still kept.
	Cited(ctx context.Context, c *loop.Case) ([]*loop.Record, error)
	// Render is the summary in one line.
	Render(r *loop.Recommendation) string
}

// LoopReview takes decisions.
type LoopReview interface {
	Approve(ctx context.Context, now time.Time, who loop.Actor, hash, because string) (*loop.Case, error)
	Reject(ctx context.Context, now time.Time, who loop.Actor, hash, because string) (*loop.Case, error)
	Apply(ctx context.Context, now time.Time, who loop.Actor, hash, because string, o loop.ApplyOptions) (*loop.Case, error)
	Rollback(ctx context.Context, now time.Time, who loop.Actor, hash, because string) (*loop.Case, error)
}

// LoopRunner makes passes and tells of them.
type LoopRunner interface {
	Run(ctx context.Context, now time.Time, o loop.RunOptions) (*loop.Result, error)
	Health(ctx context.Context, now time.Time) (*loop.Health, error)
	// LastRun is the newest pass that any router made, nil when there was none.
	LastRun(ctx context.Context) (*LoopRun, error)
	// Probe asks the model for its name.
	Probe(ctx context.Context) (model string, err error)
}

// LoopLessons is what the fleet has learned.
type LoopLessons interface {
	Guidance(ctx context.Context, moduleID string) ([]loop.Guidance, error)
	// PutEvalset sets the cases that a code revision of a module must pass.
	PutEvalset(ctx context.Context, now time.Time, who loop.Actor, moduleID string, cases []any) (hash string, err error)
	// PlanRuns are the newest runs of the plan that is this module, at most limit, the
	// newest first.
	PlanRuns(ctx context.Context, moduleID string, limit int) ([]*loop.JournaledRun, error)
	// RunEvalset runs these cases over what is live, with call, and journals the run.
	RunEvalset(ctx context.Context, clock func() time.Time, who loop.Actor, moduleID, runID string,
		call func(ctx context.Context, moduleID string, inputs map[string]any) (map[string]any, error)) (*loop.EvalRun, error)
}

// LoopRun is one pass that was made.
type LoopRun struct {
	At      time.Time
	Trigger string
	// Router is who made it.
	Router string
	Result *loop.Result
}
