package hosts

import (
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	label := strings.Repeat("a", longestLabel)
	longest := strings.Join([]string{label, label, label, label[:61]}, ".")
	if len(longest) != longestName {
		t.Fatalf("the longest name has %d bytes", len(longest))
	}
	for _, test := range []struct {
		text string
		// header and handshake are what becomes of it in a request and in a handshake.
		header, handshake string
	}{
		{"example.org", "example.org", "example.org"},
		{"Example.ORG", "example.org", "example.org"},
		{"example.org.", "example.org", "example.org"},
		{"_a-.example.org", "_a-.example.org", "_a-.example.org"},
		{"10.0.0.1", "10.0.0.1", "10.0.0.1"},
		{longest, longest, longest},
		{longest + ".", longest, longest},
		{"", "", ""},
		// A port stands only in a header, and so does an address in brackets.
		{"example.org:8080", "example.org", "refused"},
		{"example.org.:80", "example.org", "refused"},
		{":80", "", "refused"},
		{"[::1]:80", "[::1]", "refused"},
		{"[2001:DB8::1]", "[2001:db8::1]", "refused"},
		// These are no names.
		{".example.org", "refused", "refused"},
		{"a..example.org", "refused", "refused"},
		{"example.org..", "refused", "refused"},
		{".", "refused", "refused"},
		{"*.example.org", "refused", "refused"},
		{"a" + longest, "refused", "refused"},
		{"a." + longest[1:] + "a", "refused", "refused"},
		{label + "a.example.org", "refused", "refused"},
		{"user@example.org", "refused", "refused"},
		{"example.org/evil", "refused", "refused"},
		{"example.org:80:90", "refused", "refused"},
		{"example.org:x", "refused", "refused"},
		{"example.org\x00.evil", "refused", "refused"},
		{"[::1", "refused", "refused"},
		{"[::1]x", "refused", "refused"},
		{"[]", "refused", "refused"},
		{"[x]", "refused", "refused"},
		{"a b", "refused", "refused"},
		{"a,b", "refused", "refused"},
		{"ä.example", "refused", "refused"},
		{"xn--4ca.example", "xn--4ca.example", "xn--4ca.example"},
	} {
		for what, of := range map[string]struct {
			read func(string) (Name, bool)
			want string
		}{"header": {FromHeader, test.header}, "handshake": {FromServerName, test.handshake}} {
			name, is := of.read(test.text)
			if is != (of.want != "refused") || is && name.String() != of.want {
				t.Errorf("%q in a %s: got %q, %t, want %q", test.text, what, name, is, of.want)
			}
		}
	}
}

// named returns the name of a text that is one.
func named(t testing.TB, text string) Name {
	t.Helper()
	name, is := FromServerName(text)
	if !is {
		t.Fatalf("%q is no name", text)
	}
	return name
}

func TestTable(t *testing.T) {
	var table Table[string]
	for _, name := range []string{"a.example", "*.example", "*.b.example", "*.C.example", "D.example"} {
		if got := table.Entry(name, func() string { return name }); got != name {
			t.Errorf("a new entry %q has %q", name, got)
		}
	}
	if got := table.Entry("A.example", func() string { return "another" }); got != "a.example" {
		t.Errorf("an entry that is there has %q", got)
	}
	check := func(cases map[string][]string) {
		t.Helper()
		for name, want := range cases {
			got := slices.Collect(table.Fitting(named(t, name)))
			best, is := table.Best(named(t, name))
			if !slices.Equal(got, want) || is != (len(want) > 0) || is && best != want[0] {
				t.Errorf("%q finds %q and first %q, want %q", name, got, best, want)
			}
		}
	}
	check(map[string][]string{
		"a.example": {"a.example", "*.example"}, "A.Example": {"a.example", "*.example"}, "x.y.example": {"*.example"}, "d.example": {"D.example", "*.example"},
		"x.b.example": {"*.b.example", "*.example"}, "b.example": {"*.example"}, "x.c.example": {"*.C.example", "*.example"},
		"example": nil, "": nil, "other": nil,
	})
	table.Set("", "all")
	table.Set("d.example", "changed")
	check(map[string][]string{"": {"all"}, "other": {"all"}, "a.example": {"a.example", "*.example", "all"}, "d.example": {"changed", "*.example", "all"}})
	all := slices.Sorted(table.All())
	if want := []string{"*.C.example", "*.b.example", "*.example", "a.example", "all", "changed"}; !slices.Equal(all, want) {
		t.Errorf("the table has %q, want %q", all, want)
	}
}
