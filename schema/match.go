package schema

import "unicode/utf8"

// MatchGlob reports whether name matches pattern by algorithm A25: '*' is any
// run of characters (empty included, '.' and '/' too), '?' is exactly one
// character, everything else is literal; both ends are anchored. It is
// case-sensitive, counts characters rather than bytes, accepts every string as a
// pattern and never fails. Events, path filters and redaction use it.
func MatchGlob(pattern, name string) bool { return match(pattern, name, true) }

// MatchPattern reports whether id matches pattern by algorithm A08: '*' is any
// run of characters, dots included, and is the only metacharacter; both ends are
// anchored and case counts. ACL rules, execution policies and step middleware
// use it: "executor.*" matches "executor.a.b" but not "executor".
func MatchPattern(pattern, id string) bool { return match(pattern, id, false) }

// match walks both strings once and, on a mismatch, lets the last star take one
// more character: no allocation, and at worst len(p)*len(s) steps.
func match(p, s string, question bool) bool {
	pi, si := 0, 0
	star, mark := -1, 0
	for si < len(s) {
		if pi < len(p) {
			if p[pi] == '*' {
				star, mark = pi, si
				pi++
				continue
			}
			_, sw := utf8.DecodeRuneInString(s[si:])
			_, pw := utf8.DecodeRuneInString(p[pi:])
			if (question && p[pi] == '?') || p[pi:pi+pw] == s[si:si+sw] {
				pi += pw
				si += sw
				continue
			}
		}
		if star < 0 {
			return false
		}
		_, w := utf8.DecodeRuneInString(s[mark:])
		mark += w
		pi, si = star+1, mark
	}
	for pi < len(p) && p[pi] == '*' {
		pi++
	}
	return pi == len(p)
}
