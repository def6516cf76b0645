package system

import "github.com/apbus/apbus/module"

// Group is a set of system modules that come and go together.
type Group string

// The groups. The first three only read.
const (
	Health   Group = "health"
	Manifest Group = "manifest"
	Usage    Group = "usage"
	Control  Group = "control"
)

// ReadGroups are the groups whose modules only read.
func ReadGroups() []Group { return []Group{Health, Manifest, Usage} }

// GroupsOf reads which groups a configuration wants: none without
// sys_modules.enabled, then each whose own flag sys_modules.GROUP.enabled is not
// false; control also needs sys_modules.events.enabled, since its audit events
// are half of what it is.
func GroupsOf(s *Settings) []Group {
	on := func(key string) bool {
		v, _ := s.Get(key)
		b, _ := v.(bool)
		return b
	}
	if !on(keyEnabled) {
		return nil
	}
	var groups []Group
	for _, g := range []Group{Health, Manifest, Usage, Control} {
		if on("sys_modules."+string(g)+".enabled") && (g != Control || on(keyEvents)) {
			groups = append(groups, g)
		}
	}
	return groups
}

// known reports whether g is one of the groups.
func (g Group) known() bool {
	switch g {
	case Health, Manifest, Usage, Control:
		return true
	}
	return false
}

// annotations of the modules of the group. None of them reaches beyond this
// system, so open_world is false for all (decision D-119).
func (g Group) annotations() module.Annotations {
	if g == Control {
		return module.Annotations{RequiresApproval: true, ClosedWorld: true}
	}
	return module.Annotations{Readonly: true, Idempotent: true, ClosedWorld: true}
}
