package loop

import (
	"log/slog"

	"github.com/apbus/apbus/module"
)

// Options configure an [Engine]. Store and Reader are required.
type Options struct {
	Store  Store
	Reader Reader
	// Analyzers are [Builtin] when nil.
	Analyzers []Analyzer
	// Backend is the model, nil for none. Ground, when set, answers GROUND in its
	// place.
	Backend, Ground Backend
	// Embedder tells how near two lessons are in meaning; without one their words are
	// compared.
	Embedder Embedder
	// PlanRuns is the journal by which revisions of plans are rehearsed, nil for none;
	// then the policy cannot ask for it.
	PlanRuns PlanRuns
	// Policy is [DefaultPolicy] when nil.
	Policy *Policy
	// Registered tells whether a module can be called now; a plan names only such
	// modules. Nil for not asking.
	Registered func(moduleID string) bool
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

// Engine runs passes and carries recommendations through their life. It is safe
// for concurrent use and holds no state of its own beside its options: what it keeps
// of a pass for the next one changes no result.
type Engine struct {
	store      Store
	reader     Reader
	knowledge  *Knowledge
	analyzers  []Analyzer
	manifests  []Manifest
	backend    Backend
	ground     Backend
	embedder   Embedder
	policy     Policy
	planRuns   PlanRuns
	registered func(string) bool
	templates  map[string]string
	log        *slog.Logger
	// kept is what passes found in the evidence, which spares the next one reading it
	// again.
	kept *Kept
	seen *seenGrains
}

// New makes an engine. CONFIG_INVALID when the options do not work.
func New(o Options) (*Engine, error) {
	if o.Store == nil || o.Reader == nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "the loop needs a store and a reader")
	}
	e := &Engine{
		store: o.Store, knowledge: NewKnowledge(o.Store), analyzers: o.Analyzers, backend: o.Backend, ground: o.Ground, embedder: o.Embedder,
		registered: o.Registered, planRuns: o.PlanRuns, templates: llmTemplates(), log: o.Logger, kept: &Kept{}, seen: &seenGrains{},
	}
	e.reader = JoinReaders(o.Reader, e.knowledge.Reader())
	if e.log == nil {
		e.log = slog.Default()
	}
	if e.ground == nil {
		e.ground = e.backend
	}
	if e.analyzers == nil {
		e.analyzers = Builtin()
	}
	e.policy = DefaultPolicy()
	if o.Policy != nil {
		e.policy = *o.Policy
	}
	if err := e.policy.check(); err != nil {
		return nil, err
	}
	if e.policy.PlanReplay != nil && e.planRuns == nil {
		return nil, module.Errorf(module.CodeConfigInvalid, "policy: plan_replay needs a journal of plan runs")
	}
	seen := map[string]bool{familyLLM: true}
	for _, a := range e.analyzers {
		m := a.Manifest()
		if family := familyOf(m.ID); seen[family] {
			return nil, module.Errorf(module.CodeConfigInvalid, "analyzer %s is there twice", family)
		} else {
			seen[family] = true
		}
		e.manifests = append(e.manifests, m)
		for id, text := range m.Templates {
			e.templates[id] = text
		}
	}
	return e, nil
}

// Knowledge is the engine's view of what was applied.
func (e *Engine) Knowledge() *Knowledge { return e.knowledge }

// Render gives the one-line summary of a recommendation. A template or argument
// that is not known shows as a visible mark.
func (e *Engine) Render(r *Recommendation) string {
	template, ok := e.templates[r.Summary.TemplateID]
	if !ok {
		return "[unknown template]"
	}
	return Summary(r.Summary).Render(template)
}

// templates of what a model drafted: the finding, and always the change too.
const (
	templateAdvisory = "loop.llm.advisory"
	templateChange   = "loop.llm.change"
)

func llmTemplates() map[string]string {
	return map[string]string{
		templateAdvisory: "{text}",
		templateChange:   "{text} -- {change}",
	}
}
