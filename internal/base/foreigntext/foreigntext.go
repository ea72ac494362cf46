// Package foreigntext makes text fit for people that others may write freely: nodes, or users of one namespace.
package foreigntext

import (
	"strings"
	"unicode"
)

// Printable returns a text that cannot control a terminal. Lines stay, and all but the first one
// are indented, so that none looks like a line of somebody else.
func Printable(text string) string {
	return strings.ReplaceAll(strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text), "\n", "\n  ")
}

// Cut returns the beginning of a text, with up to limit bytes of it.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	if limit < len(cut) {
		return ""
	}
	return strings.ToValidUTF8(text[:limit-len(cut)], "") + cut
}

// cut is at the end of a text that was cut off.
const cut = " …"

// Argument returns a word for a command that people copy into a shell. Whoever made the object may have chosen it.
func Argument(word string) string {
	harmless := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._:/@%+=,-", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !harmless(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
