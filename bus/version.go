package bus

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// semVerShape is what a micro service insists on.
var semVerShape = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

// semVer makes a SemVer of any version: a tag loses its v, what is no SemVer,
// such as the commit of an untagged build, becomes the build of 0.0.0.
func semVer(version string) string {
	if v := strings.TrimPrefix(version, "v"); semVerShape.MatchString(v) {
		return v
	}
	build := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-' {
			return r
		}
		return '-'
	}, version)
	if build == "" {
		return "0.0.0"
	}
	return "0.0.0+" + build
}

// majorOf returns the major version for the versioned subject, 0 when the
// version has none.
func majorOf(version string) int {
	head, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(head)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// compareVersions orders release versions by their numbers; what follows a "-"
// or "+" only breaks ties by its text.
func compareVersions(a, b string) int {
	cut := func(v string) (string, string) {
		if i := strings.IndexAny(v, "-+"); i >= 0 {
			return v[:i], v[i:]
		}
		return v, ""
	}
	an, at := cut(a)
	bn, bt := cut(b)
	as, bs := strings.Split(an, "."), strings.Split(bn, ".")
	for i := range max(len(as), len(bs)) {
		if c := cmp.Compare(part(as, i), part(bs, i)); c != 0 {
			return c
		}
	}
	return cmp.Compare(at, bt)
}

func part(parts []string, i int) int {
	if i >= len(parts) {
		return 0
	}
	n, err := strconv.Atoi(parts[i])
	if err != nil {
		return 0
	}
	return n
}
