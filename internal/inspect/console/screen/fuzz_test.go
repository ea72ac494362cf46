package screen

import (
	"strings"
	"testing"
	"unicode"
)

// check fails if something on the screen is not as it must be, whatever was written.
func check(t *testing.T, s *Screen) {
	t.Helper()
	rows, columns := s.Size()
	view := s.Look()
	past, lines := view.Past, view.Lines
	if len(lines) != rows || len(past) > History || s.row < 0 || s.row >= rows || s.column < 0 || s.column >= columns || s.top < 0 || s.top >= s.bottom || s.bottom >= rows {
		t.Fatalf("%d lines of %d, cursor %d, %d, region %d to %d", len(lines), rows, s.row, s.column, s.top, s.bottom)
	}
	seen, cursors := map[int]bool{}, 0
	for _, all := range [][]*Line{past, lines} {
		for _, l := range all {
			if seen[l.ID] {
				t.Fatalf("two lines have the ID %d", l.ID)
			}
			seen[l.ID] = true
			length := 0
			for _, run := range s.Runs(l) {
				if run.Text == "" || run.Style.Front > 16 || run.Style.Back > 16 {
					t.Fatalf("a run is %+v", run)
				}
				if run.Cursor {
					cursors++
				}
				for _, r := range run.Text {
					if !unicode.IsPrint(r) && !unicode.Is(unicode.M, r) {
						t.Fatalf("%q is on the screen", r)
					}
					length++
				}
			}
			if length > 2*MaxColumns {
				t.Fatalf("a line has %d characters", length)
			}
		}
	}
	if want := map[bool]int{false: 1}[s.hidden]; cursors != want {
		t.Fatalf("there are %d cursors", cursors)
	}
	for _, b := range s.Answers() {
		if !strings.ContainsRune("\x1b[;?0123456789Rnc", rune(b)) {
			t.Fatalf("the terminal answers with %q", b)
		}
	}
}

// FuzzScreen writes bytes of an attacker, while the size changes.
func FuzzScreen(f *testing.F) {
	for _, seed := range []string{
		"hello\r\n", "\x1b[31mred\x1b[0m", "\x1b[?1049h\x1b[2J\x1b[H", "\x1b[5;10r\x1b[3L\x1b[2M\x1b[4P\x1b[5@", "\x1b]0;t\x07\x1b]52;c;aGk=\x07",
		"a\x1b[99999999999b", "\x1b[38;5;200m\x1b[48:2::1:2:3mx", "日本\u0301", "\x1b[999999S\x1b[999999T", "\x1b[?6h\x1b[?7l\x1b[4h", "\x1b#8\x1bM\x1bD\x1bE\x1bc\x1b[!p",
		"\x1b[6n\x1b[99999Z\x1b[99999I", "\x1b(0qqq\x1b(B", "\x1b7\x1b8\x1b[s\x1b[u\x1b[?1048h\x1b[?1048l",
	} {
		f.Add([]byte(seed), []byte("日\x1b[A"), 80, 24)
	}
	f.Fuzz(func(t *testing.T, first, second []byte, rows, columns int) {
		s := New(24, 80)
		for _, step := range []func(){
			func() { s.Write(first) }, func() { s.Resize(rows, columns) }, func() { s.Write(second) },
			func() { s.Write(first) }, func() { s.Resize(columns, rows) }, func() { s.Resize(24, 80) },
		} {
			step()
			check(t, s)
		}
		s.Encode(Key{Text: string(first), Name: string(second)})
		if pasted := s.paste(string(first)); strings.Contains(strings.TrimSuffix(strings.TrimPrefix(pasted, "\x1b[200~"), "\x1b[201~"), "\x1b") {
			t.Errorf("a text that is pasted becomes %q", pasted)
		}
	})
}
