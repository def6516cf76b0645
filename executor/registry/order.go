package registry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// LoadItem is what the order of loading needs to know of a module.
type LoadItem struct {
	ID           string
	Version      string // module.DefaultVersion when empty
	Dependencies []module.Dependency
}

// LoadPlan is an order of loading.
type LoadPlan struct {
	// Order lists the IDs, every module after those it depends on; of several that
	// may come next the first in the alphabet does.
	Order []string
	// Skipped lists the optional dependencies that do not count, because the
	// module is missing or its version does not fit, as pairs of module and
	// dependency.
	Skipped [][2]string
}

// LoadOrder plans the loading of modules that depend on each other (algorithm
// A07). registered maps the modules that are there already to their versions. The
// errors are DUPLICATE_MODULE_ID, DEPENDENCY_NOT_FOUND and
// DEPENDENCY_VERSION_MISMATCH with details module_id and dependency_id, and for
// the latter required and actual, VERSION_CONSTRAINT_INVALID, and
// CIRCULAR_DEPENDENCY with details.cycle_path, which begins and ends with the same
// ID. A plan that stalls has a cycle: missing modules were found out before.
func LoadOrder(items []LoadItem, registered map[string]string) (*LoadPlan, error) {
	versions := maps.Clone(registered)
	if versions == nil {
		versions = map[string]string{}
	}
	needs := make(map[string][]string, len(items)) // within items only
	for _, it := range items {
		if _, twice := needs[it.ID]; twice {
			return nil, (&module.IDConflict{Kind: module.ConflictDuplicate, With: it.ID}).Err(it.ID)
		}
		needs[it.ID] = nil
		versions[it.ID] = module.Descriptor{Version: it.Version}.EffectiveVersion()
	}
	plan := &LoadPlan{Order: make([]string, 0, len(items))}
	for _, it := range items {
		for _, dep := range it.Dependencies {
			counts, err := fits(it.ID, dep, versions)
			if err != nil {
				return nil, err
			}
			_, among := needs[dep.ModuleID]
			switch {
			case !counts:
				plan.Skipped = append(plan.Skipped, [2]string{it.ID, dep.ModuleID})
			case among && !slices.Contains(needs[it.ID], dep.ModuleID):
				needs[it.ID] = append(needs[it.ID], dep.ModuleID)
			}
		}
	}
	return plan, plan.fill(needs)
}

// fits reports whether a dependency counts.
func fits(id string, dep module.Dependency, versions map[string]string) (bool, error) {
	details := map[string]any{"module_id": id, "dependency_id": dep.ModuleID}
	actual, there := versions[dep.ModuleID]
	switch {
	case !there && dep.Optional:
		return false, nil
	case !there:
		return false, module.Errorf(module.CodeDependencyNotFound, "module %s needs %s, which is not there", id, dep.ModuleID).
			WithDetails(details)
	case dep.Version == "":
		return true, nil
	}
	ok, err := MatchVersion(dep.Version, actual)
	switch {
	case err != nil:
		return false, module.AsError(err).WithDetails(details)
	case ok || dep.Optional:
		return ok, nil
	}
	details["required"], details["actual"] = dep.Version, actual
	return false, module.Errorf(module.CodeDependencyVersionMismatch, "module %s needs another version of %s than %s", id, dep.ModuleID, actual).
		WithDetails(details)
}

// fill takes one module after the other whose needs are met (Kahn).
func (p *LoadPlan) fill(needs map[string][]string) error {
	open := make(map[string]int, len(needs))
	neededBy := map[string][]string{}
	var ready []string
	for id, deps := range needs {
		open[id] = len(deps)
		for _, d := range deps {
			neededBy[d] = append(neededBy[d], id)
		}
		if len(deps) == 0 {
			ready = append(ready, id)
		}
	}
	slices.Sort(ready)
	for len(ready) > 0 {
		id := ready[0]
		ready = ready[1:]
		delete(open, id)
		p.Order = append(p.Order, id)
		for _, waiting := range neededBy[id] {
			if open[waiting]--; open[waiting] == 0 {
				at, _ := slices.BinarySearch(ready, waiting)
				ready = slices.Insert(ready, at, waiting)
			}
		}
	}
	if len(open) == 0 {
		return nil
	}
	path := cycle(needs, open)
	list := make([]any, len(path))
	for i, id := range path {
		list[i] = id
	}
	return module.Errorf(module.CodeCircularDependency, "modules depend on each other in a circle: %s", strings.Join(path, " → ")).
		WithDetails(map[string]any{"cycle_path": list})
}

// cycle walks from the first stuck module along stuck needs until one comes up
// again, which it must: every stuck module needs a stuck one.
func cycle(needs map[string][]string, stuck map[string]int) []string {
	at := slices.Min(slices.Collect(maps.Keys(stuck)))
	var path []string
	for {
		if i := slices.Index(path, at); i >= 0 {
			return append(path[i:], at)
		}
		path = append(path, at)
		for _, next := range needs[at] {
			if _, ok := stuck[next]; ok {
				at = next
				break
			}
		}
	}
}

// Declared is a module together with what is declared for it.
type Declared struct {
	Module module.Module
	Declaration
}

// RegisterAll admits modules in the order of their dependencies, which may also
// be registered already; see [LoadOrder] and [Registry.Register] for the errors.
// After a failure none of them is registered.
func (r *Registry) RegisterAll(ctx context.Context, list ...Declared) error {
	items := make([]LoadItem, len(list))
	byID := make(map[string]Declared, len(list))
	for i, d := range list {
		if d.Module == nil {
			return module.Errorf(module.CodeInvalidInput, "register: module is nil")
		}
		desc := d.Module.Descriptor()
		items[i] = LoadItem{desc.ID, desc.Version, desc.Dependencies()}
		byID[desc.ID] = d
	}
	registered := map[string]string{}
	for _, d := range r.Descriptors() {
		registered[d.ID] = d.EffectiveVersion()
	}
	plan, err := LoadOrder(items, registered)
	if err != nil {
		return err
	}
	for i, id := range plan.Order {
		d := byID[id]
		if err := r.register(ctx, d.Module, d.Declaration, false); err != nil {
			for _, done := range slices.Backward(plan.Order[:i]) {
				r.Unregister(ctx, done)
			}
			return err
		}
	}
	return nil
}
