package examples

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apbus/apbus/module"
)

// Options say which modules to make and what they know of their surroundings.
// The zero value makes all of them.
type Options struct {
	// Node is the ID of the node that hosts the modules, as whoami, chain and
	// effect report it. Default "local".
	Node string
	// EffectLog is the file that demo.effect appends to. It is made when it is
	// missing. Empty: demo.effect only counts.
	EffectLog string
	// Groups are the groups to make; none means all of them.
	Groups []string
}

// group is one name of [Options.Groups] and what it stands for.
type group struct {
	name  string
	build func(o Options) []module.Module
}

func groups() []group {
	return []group{
		{"math", func(Options) []module.Module { return []module.Module{mathAdd()} }},
		{"text", func(Options) []module.Module { return []module.Module{textWordcount(), textWords()} }},
		{"demo", func(o Options) []module.Module {
			return append(hopModules("demo", o.Node), demoFail(), demoEffect(o.Node, o.EffectLog))
		}},
		{"near", func(o Options) []module.Module { return hopModules("near", o.Node) }},
		{"far", func(o Options) []module.Module { return hopModules("far", o.Node) }},
		{"orders", func(Options) []module.Module { return []module.Module{ordersPlace()} }},
		{"inventory", func(Options) []module.Module { return inventoryModules(newInventory()) }},
		{"payments", func(Options) []module.Module { return paymentsModules(newLedger()) }},
	}
}

// hopModules are the modules that exist in the groups demo, near and far.
func hopModules(prefix, node string) []module.Module {
	return []module.Module{
		whoami(prefix+".whoami", node),
		sleep(prefix + ".sleep"),
		chain(prefix+".chain", node),
	}
}

// Groups lists the names that [Options.Groups] may hold, in a fixed order.
func Groups() []string {
	var names []string
	for _, g := range groups() {
		names = append(names, g.name)
	}
	return names
}

// Modules makes the example modules of the groups asked for, in the order of
// [Groups]; a group named twice counts once. Each call makes new modules with
// state of their own. An unknown group is an error that names the known ones.
func Modules(o Options) ([]module.Module, error) {
	for _, name := range o.Groups {
		if known := Groups(); !slices.Contains(known, name) {
			return nil, fmt.Errorf("unknown group of examples %q: want some of %s", name, strings.Join(known, ", "))
		}
	}
	if o.Node == "" {
		o.Node = "local"
	}
	var out []module.Module
	for _, g := range groups() {
		if len(o.Groups) == 0 || slices.Contains(o.Groups, g.name) {
			out = append(out, g.build(o)...)
		}
	}
	return out, nil
}
