package loop

import (
	"strings"

	"github.com/apbus/apbus/module"
)

// Class says what a target is, and with that who may change it.
type Class string

// The classes of targets. A model may target memory and query, and code with a
// code revision only; nothing is ever applied without a person.
const (
	ClassMemory  Class = "memory"
	ClassQuery   Class = "query"
	ClassCode    Class = "code"
	ClassPrompt  Class = "prompt"
	ClassHost    Class = "host"
	ClassEvalset Class = "evalset"
	ClassModel   Class = "model"
)

// The schemes of targets.
const (
	SchemeEntity   = "entity"
	SchemeGrain    = "grain"
	SchemeQuery    = "query"
	SchemeTemplate = "template"
	SchemeTool     = "tool"
	SchemeDoc      = "doc"
	SchemeHost     = "host"
	SchemeEvalset  = "evalset"
	SchemeModel    = "model"
)

// Target is what a recommendation is about, <scheme>:<opaque>.
type Target struct{ Scheme, Opaque string }

// String returns the text form.
func (t Target) String() string { return t.Scheme + ":" + t.Opaque }

// Class returns the class of the scheme.
func (t Target) Class() Class {
	switch t.Scheme {
	case SchemeEntity, SchemeGrain:
		return ClassMemory
	case SchemeQuery, SchemeTemplate:
		return ClassQuery
	case SchemeTool:
		return ClassCode
	case SchemeDoc:
		return ClassPrompt
	case SchemeEvalset:
		return ClassEvalset
	case SchemeModel:
		return ClassModel
	}
	return ClassHost
}

// Subject is what the opaque part names: the text behind the last slash.
func (t Target) Subject() string { return t.Opaque[strings.LastIndexByte(t.Opaque, '/')+1:] }

// ParseTarget reads a target of at most [MaxTargetLen] characters without control
// or format characters; it fails with LOOP_INVALID. The opaque part of an entity is
// made of letters, digits and ._:@/- .
func ParseTarget(s string) (Target, error) {
	scheme, opaque, ok := strings.Cut(s, ":")
	t := Target{scheme, opaque}
	if !ok || opaque == "" || chars(s) > MaxTargetLen || !isClean(s) || strings.TrimSpace(opaque) != opaque {
		return Target{}, badTarget()
	}
	switch scheme {
	case SchemeEntity:
		if !onlyOf(opaque, MaxTargetLen, "._:@/-") || t.Subject() == "" {
			return Target{}, badTarget()
		}
	case SchemeGrain, SchemeQuery, SchemeTemplate, SchemeTool, SchemeDoc, SchemeHost, SchemeEvalset, SchemeModel:
	default:
		return Target{}, badTarget()
	}
	return t, nil
}

func badTarget() error { return module.Errorf(module.CodeLoopInvalid, "not a target") }
