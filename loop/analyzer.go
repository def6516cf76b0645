package loop

import (
	"context"
	"time"
)

// Severity orders findings.
type Severity string

// The severities, lowest first.
const (
	SeverityInfo   Severity = "info"
	SeverityLow    Severity = "low"
	SeverityMedium Severity = "medium"
	SeverityHigh   Severity = "high"
)

// Rank is 0 for info up to 3 for high, -1 for anything else.
func (s Severity) Rank() int {
	switch s {
	case SeverityInfo:
		return 0
	case SeverityLow:
		return 1
	case SeverityMedium:
		return 2
	case SeverityHigh:
		return 3
	}
	return -1
}

// Action is what kind of change a finding is about.
type Action string

// The actions.
const (
	ActionConsolidate       Action = "consolidate"
	ActionFlagContradiction Action = "flag_contradiction"
	ActionClusterFailure    Action = "cluster_failure"
	ActionExpire            Action = "expire"
	ActionMergeHeads        Action = "merge_heads"
	ActionRevert            Action = "revert"
	ActionFlag              Action = "flag"
	ActionRecord            Action = "record"
	ActionRevise            Action = "revise"
	ActionCodeRevision      Action = "code_revision"
)

// Summary is the text of a finding: a template of a fixed table and its arguments,
// since analyzers cannot write prose. Arguments are strings without control
// characters, integers, floats, booleans and lists of strings.
type Summary struct {
	TemplateID string
	Args       map[string]any
}

// Draft is what an analyzer found. The engine stamps it: dedup key, time, creator.
type Draft struct {
	// Target is scheme:opaque, such as entity:lessons/math.add.
	Target   string
	Action   Action
	Summary  Summary
	Severity Severity
	// Fact, when set, is what applying the recommendation would add. RevertOf, when
	// set, is the hash of the applied recommendation to be rolled back. With neither
	// the finding is advisory.
	Fact     *FactDraft
	RevertOf string
	// Data are facts for the reader, such as percentiles and nearest names, in the
	// JSON data model. Never values of inputs.
	Data map[string]any
	// Evidence are hashes of records, at most [MaxDraftEvidence], newest first.
	Evidence []string
	// EvidenceQuery tells how the full set is found.
	EvidenceQuery string
	Metric        *Metric
	// Confidence and Importance are within 0 and 1.
	Confidence, Importance float64
}

// MaxDraftEvidence bounds the evidence of one recommendation.
const MaxDraftEvidence = 64

// FactDraft is a fact to be added.
type FactDraft struct {
	Namespace                 string
	Subject, Relation, Object string
	Confidence                float64
}

// Metric tells how the outcome of an applied recommendation is measured (loop
// specification, section 3.9).
type Metric struct {
	// Kind is call_error_rate or task_failure_rate.
	Kind string
	// ModuleID, Code and Signature select the failures; empty ones select all.
	ModuleID, Code, Signature string
	// Baseline is the rate within Window before now, over N opportunities.
	Baseline float64
	N        int
	Window   time.Duration
	// MinN is how many opportunities a measurement needs, MinEffect the change of
	// the rate that counts.
	MinN           int
	MinEffect      float64
	HigherIsBetter bool
}

// The kinds of [Metric] that analyzers of evidence give.
const (
	MetricCallErrorRate   = "call_error_rate"
	MetricTaskFailureRate = "task_failure_rate"
)

// Manifest says what an analyzer is.
type Manifest struct {
	// ID is publisher.name/major, such as exec.module_failure/1.
	ID                 string
	Title, Description string
	// Cadence is fast, batch or slow.
	Cadence string
	// DefaultOn is true when it runs unless it is switched off.
	DefaultOn bool
	// Types are the types of records it looks at; Window how far back it looks, given
	// its parameters.
	Types  []Type
	Params []Param
	// Templates are the texts of its summaries by template ID; {name} stands for an
	// argument.
	Templates map[string]string
}

// Param is one parameter of an analyzer.
type Param struct {
	Name string
	// Kind is bool, int, float, str or duration (in milliseconds).
	Kind string
	// Default is used when the parameter is not given; bool, int64, float64 or string.
	Default any
	// Min and Max are the range of a number, both inclusive; MaxLen the length of a
	// text in bytes.
	Min, Max    float64
	MaxLen      int
	Description string
}

// Input is what a pass of an analyzer is begun with.
type Input struct {
	// Now is the time of the pass. Analyzers have no other clock.
	Now    time.Time
	Params Params
	// Outcomes are the measurements of applied recommendations that are due.
	Outcomes []Outcome
}

// Outcome is one measurement of an applied recommendation, made by the engine.
type Outcome struct {
	// RecHash and Target are those of the applied recommendation; Evidence its own.
	RecHash, Target string
	Evidence        []string
	// Verdict is held, regressed, held_costlier or drifted.
	Verdict           string
	Metric            string
	Baseline, Current float64
	N                 int
}

// Analyzer makes findings out of records. It is a value without state.
type Analyzer interface {
	Manifest() Manifest
	// Begin starts a pass. The parameters are complete and within their ranges.
	Begin(in Input) Pass
}

// Pass is one run of one analyzer over one reading. It is used by one goroutine.
type Pass interface {
	// Since is the time before which evidence does not matter to it; zero for none.
	Since() time.Time
	// Add takes one record of the manifest's types. The result does not depend on
	// the order of the calls. It must not keep or modify r.
	Add(r *Record)
	// Drafts ends the pass. The order is fixed: equal records give equal drafts.
	// Memory stays bounded whatever was added.
	Drafts(ctx context.Context) ([]Draft, error)
}
