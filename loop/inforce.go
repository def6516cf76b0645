package loop

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/apbus/apbus/contextwire"
)

// InForce tells what the fleet has learned about modules to those who leave evidence
// of calls, so that it can be told later whether it helped. The zero value knows of
// nothing. It is safe for concurrent use, and asking it costs one look into a map.
type InForce struct {
	byModule atomic.Pointer[map[string][]string]
}

// Set takes the live items of knowledge, in the place of those before.
func (f *InForce) Set(live []*Item) {
	byModule := make(map[string][]string)
	ordered := slices.Clone(live)
	slices.SortStableFunc(ordered, func(a, b *Item) int { return newestFirst(a.AppliedAtMS, b.AppliedAtMS, a.Hash, b.Hash) })
	for _, i := range ordered {
		for id := range i.subjects() {
			if list := byModule[id]; len(list) < MaxGuidance {
				byModule[id] = append(list, i.Hash)
			}
		}
	}
	f.byModule.Store(&byModule)
}

// Of lists the hashes of the guidance of a module, newest first, as [GuidanceOf] has
// it. The list is shared and must not be changed.
func (f *InForce) Of(moduleID string) []string {
	if m := f.byModule.Load(); m != nil {
		return (*m)[moduleID]
	}
	return nil
}

// Stamp notes in the record of a call which guidance was in force for its module.
func (f *InForce) Stamp(e *contextwire.Evidence) {
	switch e.Type {
	case contextwire.EvidenceCall, contextwire.EvidenceStream, contextwire.EvidenceTask:
		e.Guidance = f.Of(e.ModuleID)
	case contextwire.EvidenceACL, contextwire.EvidenceApproval, contextwire.EvidenceNote:
	}
}

// subjects are the modules that an item may be guidance about.
func (i *Item) subjects() map[string]bool {
	switch i.Type {
	case ItemFact:
		return map[string]bool{i.Name: true}
	case ItemSkill:
		named := make(map[string]bool)
		for _, text := range i.texts() {
			maps.Insert(named, maps.All(moduleWords(text)))
		}
		return named
	case ItemPlan, ItemQuery, ItemTemplate, ItemEvalset, ItemCode:
	}
	return nil
}

// texts are those of a skill in which it may name modules.
func (i *Item) texts() []string {
	texts := []string{i.Text("description"), i.Text("when_to_use")}
	steps, _ := i.Fields["steps"].([]any)
	for _, s := range steps {
		text, _ := s.(string)
		texts = append(texts, text)
	}
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}
