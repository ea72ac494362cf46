package testutil

import (
	"os"
	"strings"
	"testing"
)

// WantPart compares the text of a page between the comments begin and end with what part makes of that
// text. If they differ, it fails the test. With update, it writes the new text into the page instead.
// begin names the command that does so.
func WantPart(t testing.TB, page, begin, end string, update bool, part func(now string) string) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	before, rest, found := strings.Cut(text, begin+"\n")
	now, after, foundEnd := strings.Cut(rest, end+"\n")
	if !found || !foundEnd {
		t.Fatalf("%s has no lines %q and %q", page, begin, end)
	}
	want := before + begin + "\n\n" + part(now) + "\n" + end + "\n" + after
	switch {
	case text == want:
	case update:
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("a part of %s is out of date. Its first line says what writes it: %s", page, begin)
	}
}
