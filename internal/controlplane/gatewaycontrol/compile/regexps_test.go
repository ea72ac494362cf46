package compile

import (
	"regexp"
	"strings"
	"testing"
)

func TestCheckRegexp(t *testing.T) {
	for text, want := range map[string]bool{
		"/api/v[0-9]+/.*":         true,
		"(?i)/a|/b":               true,
		"(?:a{10}){10}":           true,
		strings.Repeat("a", 1024): true,
		"/a(":                     false,
		`(a)\1`:                   false,
		"(?=a)":                   false,
		"a{1001}":                 false,
		"(?:a{100}){10}":          true,
		"(?:(?:a{50}){50}){50}":   false,
		"(?:[a-z]{0,900}){1}" + strings.Repeat(".{900}", 9):    false,
		strings.Repeat("(", 600) + strings.Repeat("){2}", 600): false,
	} {
		wrong := checkRegexp(text)
		if got := !wrong.is(); got != want {
			t.Errorf("checkRegexp(%q): %v", text, wrong)
		}
		if want {
			regexp.MustCompile(text)
		}
	}
}
