package registry

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/apbus/apbus/module"
)

// MatchVersion reports whether a version fits a constraint (protocol §5.15.2):
//
//	1.2.3          exactly that; 1.2 any 1.2.x, 1 any 1.x
//	>=1.2 >1 <=2 <3  order; a missing part counts as zero
//	^1.2.3         up to the next change of the leftmost non-zero part
//	~1.2.3         up to the next minor version, ~1 up to the next major
//	>=1.2,<2       all of them
//
// Order is that of semantic versions, pre-releases before their release, build
// metadata ignored. The pre-releases of the first version beyond ^ or ~ do not
// fit. The error is VERSION_CONSTRAINT_INVALID for anything else, such as
// "latest" or "", and for a version that is no semantic version.
func MatchVersion(constraint, version string) (bool, error) {
	v, ok := parseVersion(version)
	if !ok {
		return false, module.Errorf(module.CodeVersionConstraintInvalid, "version is not a semantic version")
	}
	fits := true
	for part := range strings.SplitSeq(constraint, ",") {
		match, ok := matchOne(strings.TrimSpace(part), v)
		if !ok {
			return false, module.Errorf(module.CodeVersionConstraintInvalid, "version constraint is malformed")
		}
		fits = fits && match
	}
	return fits, nil
}

func matchOne(part string, v semver) (match, ok bool) {
	op := part[:len(part)-len(strings.TrimLeft(part, "<>=^~"))]
	want, ok := parseVersion(strings.TrimSpace(part[len(op):]))
	if !ok {
		return false, false
	}
	order := v.compare(want)
	switch op {
	case "":
		if want.parts < 3 {
			return order >= 0 && v.below(want.next(want.parts-1)), true
		}
		return order == 0, true
	case ">=":
		return order >= 0, true
	case ">":
		return order > 0, true
	case "<=":
		return order <= 0, true
	case "<":
		return order < 0, true
	case "^":
		at := 0
		for at < want.parts-1 && want.num[at] == 0 {
			at++
		}
		return order >= 0 && v.below(want.next(at)), true
	case "~":
		return order >= 0 && v.below(want.next(min(1, want.parts-1))), true
	}
	return false, false
}

type semver struct {
	num   [3]uint64
	parts int // how many of them were given
	pre   string
}

func parseVersion(s string) (semver, bool) {
	var v semver
	core, build, hasBuild := strings.Cut(s, "+")
	core, pre, hasPre := strings.Cut(core, "-")
	if (hasPre && !identifiers(pre)) || (hasBuild && !identifiers(build)) {
		return v, false
	}
	v.pre = pre
	for part := range strings.SplitSeq(core, ".") {
		if v.parts == 3 || part == "" || part[0] < '0' || part[0] > '9' {
			return v, false
		}
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return v, false
		}
		v.num[v.parts] = n
		v.parts++
	}
	return v, (!hasPre && !hasBuild) || v.parts == 3
}

// identifiers reports whether s is a dot-separated list of [0-9A-Za-z-]+.
func identifiers(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" {
			return false
		}
		for i := range len(part) {
			c := part[i]
			if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return false
			}
		}
	}
	return true
}

// next is the first version that differs in the part at index at.
func (v semver) next(at int) [3]uint64 {
	var out [3]uint64
	copy(out[:], v.num[:at+1])
	out[at]++
	return out
}

// below reports whether v comes before every release and pre-release of bound.
func (v semver) below(bound [3]uint64) bool {
	return compareNumbers(v.num, bound) < 0
}

func (v semver) compare(o semver) int {
	if c := compareNumbers(v.num, o.num); c != 0 {
		return c
	}
	switch {
	case v.pre == o.pre:
		return 0
	case v.pre == "":
		return 1
	case o.pre == "":
		return -1
	}
	return comparePre(v.pre, o.pre)
}

func compareNumbers(a, b [3]uint64) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]), cmp.Compare(a[2], b[2]))
}

// comparePre orders pre-releases: numbers by value and before words, words by
// their bytes, the shorter list first (semver §11).
func comparePre(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		an, aerr := strconv.ParseUint(as[i], 10, 64)
		bn, berr := strconv.ParseUint(bs[i], 10, 64)
		var c int
		switch {
		case aerr == nil && berr == nil:
			c = cmp.Compare(an, bn)
		case aerr == nil:
			c = -1
		case berr == nil:
			c = 1
		default:
			c = strings.Compare(as[i], bs[i])
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}
