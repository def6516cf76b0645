package registry

import "github.com/apbus/apbus/module"

// minorGap is how many minor versions a declared version may lag behind before
// somebody should hear of it.
const minorGap = 2

// Negotiate settles which version of the protocol two sides speak, the one that a
// document declares and the one that this software has (algorithm A14): the
// declared one when its minor version is lower, the greater when they share the
// minor version. stale reports a declared version more than two minors behind.
// Another major version and a declared minor beyond ours are VERSION_INCOMPATIBLE
// with details declared and supported, what is no semantic version is
// GENERAL_INVALID_INPUT.
func Negotiate(declared, supported string) (version string, stale bool, err error) {
	d, ok := parseVersion(declared)
	s, ok2 := parseVersion(supported)
	if !ok || !ok2 || d.parts < 3 || s.parts < 3 {
		return "", false, module.Errorf(module.CodeInvalidInput, "version is not a semantic version")
	}
	if d.num[0] != s.num[0] || d.num[1] > s.num[1] {
		return "", false, module.Errorf(module.CodeVersionIncompatible, "version %s is declared, %s is supported", declared, supported).
			WithDetails(map[string]any{"declared": declared, "supported": supported})
	}
	if d.num[1] < s.num[1] {
		return declared, s.num[1]-d.num[1] > minorGap, nil
	}
	if d.compare(s) < 0 {
		return supported, false, nil
	}
	return declared, false, nil
}
