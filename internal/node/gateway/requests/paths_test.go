package requests

import (
	"errors"
	"strings"
	"testing"
)

func TestParsePath(t *testing.T) {
	for _, test := range []struct {
		raw, clean, match string
		err               error
	}{
		{"/", "/", "/", nil},
		{"/a/b", "/a/b", "/a/b", nil},
		{"/a/b/", "/a/b/", "/a/b/", nil},
		{"//", "/", "/", nil},
		{"//a///b//", "/a/b/", "/a/b/", nil},
		{"/a/./b/.", "/a/b/", "/a/b/", nil},
		{"/a/../b", "/b", "/b", nil},
		{"/a/..", "/", "/", nil},
		{"/a/b/../", "/a/", "/a/", nil},
		{"/a/%2e%2E/b", "/b", "/b", nil},
		{"/a%20b/%41", "/a%20b/%41", "/a b/A", nil},
		{"/a%2fb", "/a%2fb", "/a%2Fb", nil},
		{"/a%252e", "/a%252e", "/a%252e", nil},
		{"/a%252Fb", "/a%252Fb", "/a%252Fb", nil},
		{"/.well-known/x", "/.well-known/x", "/.well-known/x", nil},
		{"/a/...", "/a/...", "/a/...", nil},
		{"/a;v=1/b", "/a;v=1/b", "/a;v=1/b", nil},
		{"/@scope%2fname", "/@scope%2fname", "/@scope%2Fname", nil},
		{"/\xc3\xa9", "/\xc3\xa9", "/\xc3\xa9", nil},

		{"", "", "", errPathStart},
		{"*", "", "", errPathStart},
		{"a/b", "", "", errPathStart},
		{"/..", "", "", errPathOutside},
		{"/a/../../b", "", "", errPathOutside},
		{"/%2e%2e/b", "", "", errPathOutside},
		{"/a/..%2fb", "", "", errPathDots},
		{"/a/%2e%2e%2fb", "", "", errPathDots},
		{"/a/b%2f..", "", "", errPathDots},
		{"/a/..%5cb", "", "", errPathDots},
		{"/a/..;/b", "", "", errPathDots},
		{"/a/..;x=y/b", "", "", errPathDots},
		{"/a/.;/b", "", "", errPathDots},
		{"/a%00b", "", "", errPathEscape},
		{"/a%0", "", "", errPathEscape},
		{"/a%zz", "", "", errPathEscape},
		{`/a\b`, "", "", errPathByte},
		{"/a b", "", "", errPathByte},
		{"/a#b", "", "", errPathByte},
		{"/a\x7f", "", "", errPathByte},
	} {
		got, err := parsePath(test.raw)
		want := path{test.raw, test.clean, test.match}
		if test.err != nil {
			want = path{}
		}
		if !errors.Is(err, test.err) || got != want {
			t.Errorf("%q: got %q, %v, want %q, %v", test.raw, got, err, want, test.err)
		}
	}
}

// TestReplacePrefix has the table of HTTPPathModifier.ReplacePrefixMatch of the Gateway API.
func TestReplacePrefix(t *testing.T) {
	for _, test := range []struct{ path, prefix, value, want string }{
		{"/foo/bar", "/foo", "/xyz", "/xyz/bar"},
		{"/foo/bar", "/foo", "/xyz/", "/xyz/bar"},
		{"/foo/bar", "/foo/", "/xyz", "/xyz/bar"},
		{"/foo/bar", "/foo/", "/xyz/", "/xyz/bar"},
		{"/foo", "/foo", "/xyz", "/xyz"},
		{"/foo/", "/foo", "/xyz", "/xyz/"},
		{"/foo/bar", "/foo", "", "/bar"},
		{"/foo/", "/foo", "", "/"},
		{"/foo", "/foo", "", "/"},
		{"/foo/", "/foo", "/", "/"},
		{"/foo", "/foo", "/", "/"},

		{"/foo/bar", "/", "/xyz", "/xyz/foo/bar"},
		{"/", "/", "/xyz", "/xyz"},
		{"/a%20b/c%2Fd/e", "/a b", "/x", "/x/c%2Fd/e"},
		{"/x/..//foo//bar", "/foo", "/y", "/y/bar"},
		{"/foo//evil.example/", "/foo", "", "/evil.example/"},
		{"/foo/bar", "/foo", "xyz", "/xyz/bar"},
	} {
		parsed, err := parsePath(test.path)
		if err != nil {
			t.Fatal(err)
		}
		prefix := test.prefix
		if prefix[len(prefix)-1] == '/' {
			prefix = prefix[:len(prefix)-1]
		}
		if !hasPrefix(parsed.match, prefix) {
			t.Errorf("%q has not the prefix %q", test.path, prefix)
		}
		if got := parsed.replacePrefix(prefix, test.value); got != test.want {
			t.Errorf("%q with %q for %q: got %q, want %q", test.path, test.value, test.prefix, got, test.want)
		}
	}
}

// hasPrefix tells whether a path begins with the segments of a prefix, which has no slash at
// its end. The prefix of all paths is empty.
func hasPrefix(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/')
}
