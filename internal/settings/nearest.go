package settings

import (
	"slices"
	"unicode/utf8"
)

// Nearest returns the name that key most likely meant, or "" when none is near.
// Ties go to the name that sorts first.
func Nearest(key string, names []string) string {
	best, distance := "", max(2, utf8.RuneCountInString(key)/2)+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := editDistance(key, name); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions and replacements between a and b.
func editDistance(a, b string) int {
	from, to := []rune(a), []rune(b)
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, ra := range from {
		diagonal := row[0]
		row[0] = i + 1
		for j, rb := range to {
			cost := diagonal
			if ra != rb {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(to)]
}
