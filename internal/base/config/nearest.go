package config

import (
	"slices"
	"strings"
)

// notSuggested are names that a hint must not give: a user who follows the hint without
// a thought would lose data or protection. So would names that begin with "disable".
var notSuggested = []string{"cluster-reset", "ignore-pods", "s3-insecure", "s3-skip-ssl-verify", "yes"}

// Nearest returns the name that word is probably a misspelling of, or "" if none is
// near. A name is near if at most two letters differ, and at most a quarter of the
// letters of the shorter one. Nearest never returns a name that disables something.
func Nearest(word string, names []string) string {
	word = strings.ToLower(strings.ReplaceAll(word, "_", "-"))
	nearest, least := "", 3
	for _, name := range names {
		if d := distance(word, name); d < least && 4*d <= min(len(word), len(name)) {
			nearest, least = name, d
		}
	}
	if strings.HasPrefix(nearest, "disable") || slices.Contains(notSuggested, nearest) {
		return ""
	}
	return nearest
}

// distance is the Levenshtein distance of two texts: how many letters must be
// inserted, removed or changed to make a of b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
