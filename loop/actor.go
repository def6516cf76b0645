package loop

import (
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// Scope is a right on recommendations. Admin implies all others; write implies
// neither review nor apply.
type Scope string

// The scopes.
const (
	ScopeRead   Scope = "read"
	ScopeWrite  Scope = "write"
	ScopeReview Scope = "review"
	ScopeApply  Scope = "apply"
	ScopeAdmin  Scope = "admin"
)

// Who observed or did something.
const (
	ObserverHuman  = "human"
	ObserverAgent  = "agent"
	ObserverPolicy = "policy"
	ObserverSystem = "system"
)

// Actor is who acts, as the front door authenticated it; nothing of it comes from
// the text of a request.
type Actor struct {
	ID string
	// Observer is human, agent, policy or system. Only a human reviews, applies and
	// administers; agents and schedules may start a run, whatever their scopes.
	Observer string
	Scopes   []Scope
}

// ActorFrom makes the actor of an identity: user and human are human, agent is
// agent, anything else is system.
func ActorFrom(id *module.Identity, scopes []Scope) Actor {
	if id == nil {
		return Actor{Observer: ObserverSystem, Scopes: scopes}
	}
	a := Actor{ID: id.ID(), Observer: ObserverSystem, Scopes: scopes}
	switch id.Type() {
	case "user", "human":
		a.Observer = ObserverHuman
	case "agent", "ai":
		a.Observer = ObserverAgent
	}
	return a
}

// can checks that the actor has a scope; LOOP_SCOPE otherwise.
func (a Actor) can(s Scope) error {
	decides := s == ScopeReview || s == ScopeApply || s == ScopeAdmin
	switch {
	case a.ID == "" || strings.HasPrefix(a.ID, "engine:") || strings.HasPrefix(a.ID, "policy:"),
		decides && a.Observer != ObserverHuman,
		!slices.Contains(a.Scopes, s) && !slices.Contains(a.Scopes, ScopeAdmin):
		return module.Errorf(module.CodeLoopScope, "this needs the right to %s", s).
			WithDetails(map[string]any{"reason": "scope", "scope": string(s)})
	}
	return nil
}

// because checks and trims a reason: 1 to [MaxBecauseLen] characters that are not
// only white space.
func because(reason string) (string, error) {
	reason = strings.TrimSpace(cleanText(reason))
	if reason == "" || chars(reason) > MaxBecauseLen {
		return "", module.Errorf(module.CodeLoopInvalid, "a reason of 1 to %d characters is required", MaxBecauseLen)
	}
	return reason, nil
}

// engineActor is the engine acting for an analyzer or a rule of its own.
func engineActor(name string) Actor {
	return Actor{ID: "engine:" + name, Observer: ObserverSystem}
}
