package compile

import "testing"

func TestIntersection(t *testing.T) {
	for _, test := range []struct{ a, b, both string }{
		{"", "", ""},
		{"", "a.example", "a.example"},
		{"a.example", "a.example", "a.example"},
		{"*.example", "a.example", "a.example"},
		{"*.example", "b.a.example", "b.a.example"},
		{"*.example", "*.a.example", "*.a.example"},
		{"*.example", "*.example", "*.example"},
		{"*.example", "example", "none"},
		{"*.example", "anexample", "none"},
		{"a.example", "b.example", "none"},
		{"*.a.example", "*.b.example", "none"},
	} {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			both, fits := intersection(pair[0], pair[1])
			if fits != (test.both != "none") || fits && both != test.both {
				t.Errorf("intersection(%q, %q) = %q, %v", pair[0], pair[1], both, fits)
			}
		}
	}
}

// The index finds the same overlaps as comparing each with each.
func TestNames(t *testing.T) {
	all := []string{"", "com", "*.com", "a.com", "*.a.com", "b.a.com", "*.b.a.com", "c.b.a.com", "*.org", "org", "a.org"}
	for _, known := range all {
		index := newNames()
		index.add(known, "r")
		for _, asked := range all {
			_, overlaps := intersection(known, asked)
			if got := index.overlap(asked) != ""; got != overlaps {
				t.Errorf("with %q, overlap(%q) = %v", known, asked, got)
			}
		}
	}
}

func TestNamesKeepTheFirst(t *testing.T) {
	index := newNames()
	index.add("a.example", "first")
	index.add("*.example", "second")
	for asked, want := range map[string]string{"a.example": "first", "*.example": "second", "b.example": "second", "": "first", "example": ""} {
		if got := index.overlap(asked); got != want {
			t.Errorf("overlap(%q) = %q, want %q", asked, got, want)
		}
	}
}
