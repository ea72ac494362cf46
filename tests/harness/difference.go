package harness

import (
	"slices"
	"strings"
)

// Difference returns the lines that are in only one of two texts.
func Difference(before, after string) string {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	var changed []string
	for _, line := range old {
		if !slices.Contains(now, line) {
			changed = append(changed, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(old, line) {
			changed = append(changed, "+ "+line)
		}
	}
	return strings.Join(changed, "\n")
}
