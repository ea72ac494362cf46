package hosts

import (
	"strings"
	"testing"
)

// FuzzName reads anything as a server name and as a Host header. What both accept is the same
// name, which fits the same entry of a table, and can stand in a URL. What a table finds is what
// the sentences of the Gateway API say.
func FuzzName(f *testing.F) {
	for _, seed := range []string{
		"secure.example.com", "secure.example.com:443", "SECURE.example.com.", ".secure.example.com", "a..example.com", "[::1]:8080", "user@host",
		"", ":80", "[]", "[x]:", strings.Repeat("a.", 120) + "secure.example.com", "x\x00.example.com",
	} {
		f.Add(seed)
	}
	hostnames := []string{"", "*.example.com", "secure.example.com", "*.secure.example.com", "*.com"}
	var table Table[string]
	for _, hostname := range hostnames {
		table.Set(hostname, hostname)
	}
	f.Fuzz(func(t *testing.T, text string) {
		asked, isHeader := FromHeader(text)
		shown, isServerName := FromServerName(text)
		if isServerName && (!isHeader || asked != shown) {
			t.Errorf("%q is %q in a handshake, and %q, %t in a header", text, shown, asked, isHeader)
		}
		if !isHeader {
			return
		}
		name := asked.String()
		if strings.ContainsAny(name, "/@?# \t\r\n\"\\%,;\x00") || name != strings.ToLower(name) || strings.HasSuffix(name, ".") || strings.HasPrefix(name, ".") {
			t.Errorf("%q: got %q", text, name)
		}
		if again, is := FromHeader(name); !is || again != asked {
			t.Errorf("%q becomes %q and then %q, %t", text, name, again, is)
		}
		want := ""
		for _, hostname := range hostnames {
			rest, wild := strings.CutPrefix(hostname, "*")
			if hostname == name || wild && strings.HasSuffix(name, rest) && len(hostname) > len(want) && want != name {
				want = hostname
			}
		}
		if got, _ := table.Best(asked); got != want {
			t.Errorf("%q belongs to %q, want %q", name, got, want)
		}
	})
}
