package loop

import (
	"maps"

	"github.com/apbus/apbus/loop/plan"
	"github.com/apbus/apbus/module"
	"github.com/apbus/apbus/schema"
)

// OpKind is what an operation on knowledge does.
type OpKind string

// The operations. There is no text form, so nothing can be injected into one.
const (
	// OpAdd adds an item. A named item must not have a live namesake.
	OpAdd OpKind = "add"
	// OpSupersede puts an item in the place of the live one under the same name,
	// which must be Replaces.
	OpSupersede OpKind = "supersede"
	// OpHide makes the live item Replaces invisible, as a lesson that another one
	// takes over.
	OpHide OpKind = "hide"
	// OpForget removes the live item Replaces for good. It is destructive.
	OpForget OpKind = "forget"
)

// ItemType is what an item of knowledge is.
type ItemType string

// The types of items. A lesson is a fact with the relation "lesson".
const (
	ItemFact     ItemType = "fact"
	ItemSkill    ItemType = "skill"
	ItemPlan     ItemType = "plan"
	ItemQuery    ItemType = "query"
	ItemTemplate ItemType = "template"
	ItemEvalset  ItemType = "evalset"
	ItemCode     ItemType = "code"
)

// RelationLesson is the relation of facts that are lessons.
const RelationLesson = "lesson"

// MaxItem is the largest content of an item in bytes of canonical JSON. What is larger
// is refused with LOOP_INVALID before anything is written: an evalset of large cases,
// or a program, of which more than [MaxCodeLen] characters are refused anyway. A
// document of knowledge holds at least two versions of such a size.
const MaxItem = 192 << 10

// Op is one typed operation on knowledge.
type Op struct {
	Op   OpKind   `json:"op"`
	Type ItemType `json:"type"`
	// Namespace and Name say where: the subject of a fact, the name of everything
	// else.
	Namespace string         `json:"namespace,omitempty"`
	Name      string         `json:"name"`
	Fields    map[string]any `json:"fields,omitempty"`
	// Replaces is the hash of the item that must be live.
	Replaces string `json:"replaces,omitempty"`
}

// named reports whether at most one item of this type and name is live.
func (t ItemType) named() bool { return t != ItemFact }

func (t ItemType) valid() bool {
	switch t {
	case ItemFact, ItemSkill, ItemPlan, ItemQuery, ItemTemplate, ItemEvalset, ItemCode:
		return true
	}
	return false
}

// slot is the key of the document the operation works on: one for each name, and
// for facts one for each content, so that equal facts meet. Plans that would be the
// same module meet too, whatever their namespaces, so that of two the second is
// refused.
func (o Op) slot() string {
	return slotKey(o.Type, o.Namespace, o.Name, o.Fields)
}

func slotKey(t ItemType, namespace, name string, fields map[string]any) string {
	id := []any{string(t), namespace, name}
	switch {
	case t == ItemPlan:
		if moduleID, err := plan.ModuleID(name); err == nil {
			id = []any{string(t), moduleID}
		}
	case !t.named():
		id = append(id, fields["relation"], fields["object"])
	}
	return string(t) + "." + schema.ContentHash(id)
}

// check refuses what no operation may be, with LOOP_INVALID.
func (o Op) check() error {
	bad := func(why string) error {
		return module.Errorf(module.CodeLoopInvalid, "operation %s of %s: %s", o.Op, o.Type, why)
	}
	if !o.Type.valid() {
		return bad("unknown type")
	}
	if o.Name == "" || chars(o.Name) > MaxTargetLen || !isClean(o.Name) || chars(o.Namespace) > MaxTargetLen || !isClean(o.Namespace) {
		return bad("its name cannot be used")
	}
	switch o.Op {
	case OpAdd:
		if o.Replaces != "" {
			return bad("it replaces nothing")
		}
	case OpSupersede:
		if !o.Type.named() {
			return bad("facts are hidden and added, not superseded")
		}
		fallthrough
	case OpHide, OpForget:
		if len(o.Replaces) != 64 || !isHex(o.Replaces) {
			return bad("it needs what it replaces")
		}
	default:
		return bad("unknown operation")
	}
	if o.Type == ItemFact {
		relation, _ := o.Fields["relation"].(string)
		object, _ := o.Fields["object"].(string)
		if relation == "" || object == "" {
			return bad("a fact needs relation and object")
		}
	}
	if source, _ := o.Fields["source"].(string); o.Type == ItemCode && chars(source) > MaxCodeLen {
		return bad("its source is longer than a program may be")
	}
	if raw, err := schema.CanonicalJSON(o.Fields); err != nil || len(raw) > MaxItem {
		return bad("its content is larger than an item may be")
	}
	return nil
}

// destructive reports whether it cannot be undone.
func (o Op) destructive() bool { return o.Op == OpForget }

func factOp(namespace, subject, relation, object string, confidence float64) Op {
	return Op{Op: OpAdd, Type: ItemFact, Namespace: namespace, Name: subject, Fields: map[string]any{
		"relation": relation, "object": object, "confidence": confidence,
	}}
}

// with returns a copy of the operation with one more field.
func (o Op) with(key string, v any) Op {
	o.Fields = maps.Clone(o.Fields)
	o.Fields[key] = v
	return o
}
