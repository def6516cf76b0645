package loop

import (
	"context"
	"time"
)

// The verdicts on an applied recommendation.
const (
	VerdictHeld     = "held"
	VerdictRegress  = "regressed"
	VerdictCostlier = "held_costlier"
	VerdictDrifted  = "drifted"
)

// outcomeReview proposes to take back what was applied and made things worse, or
// what rests on facts that are gone.
type outcomeReview struct{}

func (outcomeReview) Manifest() Manifest {
	return Manifest{
		ID: "exec.outcome_review/1", Title: "Outcome review", Cadence: "batch", DefaultOn: true,
		Description: "Applied recommendations after which things got worse, dearer, or whose premises are gone.",
		Templates: map[string]string{
			"exec.outcome_regressed": "After the recommendation {rec} was applied, {metric} went from {baseline} to {current} over {count} measured",
			"exec.outcome_drifted":   "What the applied recommendation {rec} rests on is no longer so",
			"exec.outcome_costlier":  "After the recommendation {rec} was applied, {metric} held and the cost rose",
		},
	}
}

func (outcomeReview) Begin(in Input) Pass { return &reviewPass{in.Now, in.Outcomes} }

type reviewPass struct {
	now      time.Time
	outcomes []Outcome
}

func (p *reviewPass) Since() time.Time { return p.now }

func (p *reviewPass) Add(*Record) {}

func (p *reviewPass) Drafts(context.Context) ([]Draft, error) {
	var drafts []Draft
	for _, o := range p.outcomes {
		args := map[string]any{
			"rec": Cap(o.RecHash, 12), "metric": shown(o.Metric), "baseline": rounded(o.Baseline), "current": rounded(o.Current), "count": int64(o.N),
		}
		d := Draft{
			Target: o.Target, Action: ActionRevert, Severity: SeverityHigh, RevertOf: o.RecHash,
			Evidence: o.Evidence[:min(len(o.Evidence), MaxDraftEvidence)], Confidence: 0.8, Importance: 0.7,
		}
		switch o.Verdict {
		case VerdictRegress:
			d.Summary = Summary{"exec.outcome_regressed", args}
		case VerdictDrifted:
			d.Summary = Summary{"exec.outcome_drifted", args}
		case VerdictCostlier:
			d.Summary = Summary{"exec.outcome_costlier", args}
			d.Action, d.Severity, d.RevertOf = ActionFlag, SeverityMedium, ""
		default:
			continue
		}
		drafts = append(drafts, d)
	}
	return ordered(drafts), nil
}

// rounded is a rate to three places.
func rounded(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }
