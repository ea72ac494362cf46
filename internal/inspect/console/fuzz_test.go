package console

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/inspect/console/screen"
)

// FuzzTerminal writes any bytes to a terminal, as a program of an attacker may. The page must get only text, in elements with known classes.
func FuzzTerminal(f *testing.F) {
	f.Add([]byte("<script>\x1b[1;7;31m</span>\x1b[0m\x1b[38;5;123m日本\x1b[3J\r\n\n"), []byte("\x1b[?1049h"))
	f.Add([]byte(evil+"\x00\u2028"), []byte("\x1b[2;3r\x1bM\x1b[H\n"))
	html := regexp.MustCompile(`^(<span class="[a-z0-9 ]+">[^<>"]*</span>|[^<>"]*)*$`)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := &shell{screen: screen.New(10, 20), input: make(chan []byte, 1)}
		w, page := &watcher{sent: map[int]string{}}, map[int]bool{}
		for _, writes := range [][]byte{first, second, first} {
			_, _ = s.Write(writes)
			text, err := w.frame(s)
			if err != nil {
				t.Fatal(err)
			}
			var got frame
			if err := json.Unmarshal([]byte(text), &got); err != nil || len(got.Lines) != 10 {
				t.Fatalf("%d lines: %v", len(got.Lines), err)
			}
			if got.Clear {
				page = map[int]bool{}
			}
			for _, l := range append(got.Past, got.Lines...) {
				if l.HTML == nil && !page[l.ID] {
					t.Fatalf("the page does not have line %d", l.ID)
				}
				if l.HTML != nil && (!html.MatchString(*l.HTML) || strings.ContainsFunc(*l.HTML, func(r rune) bool { return r < ' ' || r == '\u202e' })) {
					t.Fatalf("a line is %q", *l.HTML)
				}
			}
			page = map[int]bool{}
			for _, l := range got.Lines {
				page[l.ID] = true
			}
		}
	})
}
