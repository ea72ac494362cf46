package screen

import (
	"fmt"
	"strings"
	"testing"
)

// text returns what is on the screen, with the cursor as "_" if it is on a blank.
func text(s *Screen) string {
	lines := s.Look().Lines
	rows := make([]string, len(lines))
	for i, l := range lines {
		for _, run := range s.Runs(l) {
			if run.Cursor && run.Text == " " {
				run.Text = "_"
			}
			rows[i] += run.Text
		}
	}
	return strings.TrimRight(strings.Join(rows, "\n"), "\n")
}

// Each case writes something to a screen of 5 rows and 10 columns, and says what the screen shows afterwards.
func TestScreen(t *testing.T) {
	for name, test := range map[string]struct{ writes, want string }{
		"lines":                     {"one\r\ntwo", "one\ntwo_"},
		"the cursor on a character": {"one\r", "one"},
		"a long line":               {"0123456789ab", "0123456789\nab_"},
		"the end of a line":         {"0123456789", "0123456789"},
		"no wrapping":               {"\x1b[?7l0123456789ab", "012345678b"},
		"a screen that is full":     {"1\n\r2\n\r3\n\r4\n\r5\n\r6", "2\n3\n4\n5\n6_"},
		"backspace":                 {"ab\b \b", "a_"},
		"tabs":                      {"a\tb", "a       b_"},
		"own tabs":                  {"\x1b[3g\x1b[3C\x1bH\r\ta", "   a_"},
		"a place":                   {"\x1b[3;4Hx", "\n\n   x_"},
		"a place beyond":            {"\x1b[99999999999;99999999999Hx\x1b[H", "_\n\n\n\n         x"},
		"up and down":               {"\x1b[2Ba\x1b[Ab\x1b[9Dc", "\ncb\na"},
		"to the beginning":          {"a\x1b[2Eb\x1b[Fc\x1b[8Gd\x1b[2de", "a\nc      de_\nb"},
		"erase to the end":          {"abc\r\ndef\x1b[1;2H\x1b[J", "a_"},
		"erase from the beginning":  {"abc\r\ndef\x1b[2D\x1b[1J", "\n _f"},
		"erase all":                 {"abc\x1b[2J", "   _"},
		"erase in the line":         {"abcdef\x1b[4D\x1b[Kx\x1b[1Ky", "   y_"},
		"erase characters":          {"abcdef\r\x1b[2X", "_ cdef"},
		"delete characters":         {"abcdef\r\x1b[2P", "cdef"},
		"insert characters":         {"abcdef\r\x1b[2@", "_ abcdef"},
		"insert mode":               {"abc\r\x1b[4hxy\x1b[4lz", "xyzbc"},
		"repeat":                    {"a\x1b[3b\x1b[H", "aaaa"},
		"repeat without end":        {"a\x1b[9999999b\x1b[H", "aaaaaaaaaa\na"},
		"insert lines":              {"a\r\nb\r\nc\x1b[2H\x1b[L", "a\n_\nb\nc"},
		"delete lines":              {"a\r\nb\r\nc\x1b[H\x1b[M", "b\nc"},
		"a region":                  {"a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[3Hx\n\ry", "a\nx\ny_\nd"},
		"a region, up":              {"a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[2H\x1bMy", "a\ny_\nb\nd"},
		"scroll":                    {"a\r\nb\r\nc\x1b[S\x1b[H", "b\nc"},
		"scroll down":               {"a\r\nb\x1b[T\x1b[H", "_\na\nb"},
		"rows of the region":        {"\x1b[2;4r\x1b[?6h\x1b[1;1Hx\x1b[9Hy", "\nx\n\ny_"},
		"save and restore":          {"ab\x1b7\x1b[3;3Hx\x1b8y", "aby_\n\n  x"},
		"alternate screen":          {"main\x1b[?1049h\x1b[Hother", "other_"},
		"back to the main screen":   {"main\x1b[?1049h\x1b[2Jother\x1b[?1049l", "main_"},
		"drawing":                   {"\x1b(0lqk\x1b(Bq\x1b)0\x0ex\x0f", "┌─┐q│_"},
		"UTF-8":                     {"häß€😀", "häß€😀_"},
		"wide characters":           {"日本日本日本", "日本日本日\n本_"},
		"half of a wide character":  {"日本\x1b[2Gx", " x本"},
		"wide at the end":           {"012345678日", "012345678\n日_"},
		"accents":                   {"e\u0301x", "e\u0301x_"},
		"many accents":              {"e" + strings.Repeat("\u0301", 1000), "e\u0301_"},
		"an accent on nothing":      {"\u0301", "_"},
		"direction":                 {"a\u202eb\u2066c", "abc_"},
		"bad UTF-8":                 {"a\xffb\xe2\x28c\xf0\xf0", "a\ufffdb\ufffd(c\ufffd_"},
		"title":                     {"\x1b]0;title\x07a\x1b]2;title\x1b\\b", "ab_"},
		"clipboard, links, images":  {"\x1b]52;c;aGk=\x07\x1b]8;;http://evil.test\x1b\\x\x1b]8;;\x1b\\\x1bPq#0\x1b\\\x1b_G\x1b\\", "x_"},
		"a text without end":        {"\x1b]0;" + strings.Repeat("x", 1000) + "\x1b[1my", "y_"},
		"a sequence that is ended":  {"\x1b[12\x18x\x1b]0;x\x1ay", "xy_"},
		"a line within a sequence":  {"a\x1b[\r2Cb", "a b_"},
		"unknown sequences":         {"\x1b[1;2;3y\x1b[>4;2m\x1b[?1006h\x1b[ q\x1b[1$p\x1b[<u\x1b[1?2h\x1bZ\x1b=a", "a_"},
		"many numbers":              {"\x1b[" + strings.Repeat("1;", 1000) + "1ma", "a_"},
		"all anew":                  {"a\x1b[?25l\x1b[2;3r\x1bcb", "b_"},
		"no cursor":                 {"a\x1b[?25l", "a"},
		"scripts":                   {"<b>&amp;", "<b>&amp;_"},
		"adjustment":                {"\x1b#8\x1b[2J\x1b[H", "_"},
	} {
		t.Run(name, func(t *testing.T) {
			for size := 1; size < 4; size++ { // in pieces of each size
				s := New(5, 10)
				for rest := []byte(test.writes); len(rest) > 0; {
					n, _ := s.Write(rest[:min(size, len(rest))])
					rest = rest[n:]
				}
				if got := text(s); got != test.want {
					t.Fatalf("got\n%q, want\n%q", got, test.want)
				}
			}
		})
	}
}

func TestStyle(t *testing.T) {
	for codes, want := range map[string]Style{
		"":                        {},
		"\x1b[1;3;4;9m":           {Bold: true, Italic: true, Underline: true, Struck: true},
		"\x1b[1;3;4;9;22;23m":     {Underline: true, Struck: true},
		"\x1b[31;42m":             {Front: 2, Back: 3},
		"\x1b[91;107m":            {Front: 10, Back: 16},
		"\x1b[31;42;39;49m":       {},
		"\x1b[7m":                 {Inverse: true},
		"\x1b[7;0m\x1b[1m\x1b[m":  {},
		"\x1b[38;5;9;1m":          {Front: 10, Bold: true},
		"\x1b[38;5;196m":          {Front: 10},
		"\x1b[48;5;232m":          {Back: 1},
		"\x1b[38;2;250;0;0;4m":    {Front: 10, Underline: true},
		"\x1b[38:2::250:0:0m":     {Front: 10},
		"\x1b[38:2:250:0:0m":      {Front: 10},
		"\x1b[38:2::250:0:0:1:1m": {Front: 10},
		"\x1b[48:5:22;4:3m":       {Back: 1, Underline: true},
		"\x1b[4:0m":               {},
		"\x1b[38;5m\x1b[38m":      {},
		"\x1b[38;2;9999;9999m":    {},
		"\x1b[38;5;999m":          {},
		"\x1b[58;5;1m":            {},
	} {
		s := New(5, 10)
		fmt.Fprintf(s, "%sx\x1b[H\x1b[?25l", codes)
		lines := s.Look().Lines
		if runs := s.Runs(lines[0]); len(runs) == 0 || runs[0].Text != "x" || runs[0].Style != want {
			t.Errorf("%q: got %+v, want %+v", codes, runs, want)
		}
	}
}

// Lines that leave the screen are kept, up to a number. They keep their IDs.
func TestHistory(t *testing.T) {
	s := New(3, 10)
	for i := range 10 {
		fmt.Fprintf(s, "%d\r\n", i)
	}
	view := s.Look()
	past, now := view.Past, view.Lines
	if len(past) != 8 || view.Gone != 0 || s.Runs(past[7])[0].Text != "7" || s.Runs(now[0])[0].Text != "8" || now[0].ID != past[7].ID+1 {
		t.Errorf("got %d old lines", len(past))
	}
	fmt.Fprint(s, "\x1b[?1049h", strings.Repeat("other\r\n", 10), "\x1b[?1049l")
	if again := s.Look(); len(again.Past) != 8 || again.Lines[0].ID != now[0].ID {
		t.Errorf("the alternate screen leaves %d old lines", len(again.Past))
	}
	fmt.Fprint(s, strings.Repeat("x\r\n", 2*History))
	if view := s.Look(); len(view.Past) != History || view.Gone != 8+2*History-History {
		t.Errorf("there are %d old lines, after %d others", len(view.Past), view.Gone)
	}
	fmt.Fprint(s, "\x1b[3J")
	if view := s.Look(); len(view.Past) != 0 || view.Cleared != 1 || view.Gone != 8+2*History {
		t.Errorf("after all was erased there are %d old lines, after %d others", len(view.Past), view.Gone)
	}
}

// A caller draws a line again only if it has changed.
func TestDrawn(t *testing.T) {
	s := New(3, 10)
	fmt.Fprint(s, "a\r\nb\r\n")
	changed := func() (rows []int) {
		lines := s.Look().Lines
		for i, l := range lines {
			if l.Drawn == "" {
				rows = append(rows, i)
			}
			l.Drawn = "drawn"
		}
		return rows
	}
	changed()
	for write, want := range map[string]string{"c": "[2]", "\x1b[1;2H": "[0 2]", "\x1b]0;x\x07": "[0]"} {
		fmt.Fprint(s, "\x1b[3;1H")
		changed()
		if write == "\x1b]0;x\x07" {
			want = "[2]"
		}
		fmt.Fprint(s, write)
		if got := fmt.Sprint(changed()); got != want {
			t.Errorf("%q changes the lines %v, want %v", write, got, want)
		}
	}
}

func TestResize(t *testing.T) {
	s := New(4, 10)
	fmt.Fprint(s, "1\r\n2\r\n3\r\n4")
	s.Resize(2, 20)
	if text(s) != "3\n4_" || len(s.Look().Past) != 2 {
		t.Errorf("smaller: %q", text(s))
	}
	s.Resize(5, 12)
	fmt.Fprint(s, "\r\n0123456789abc")
	if text(s) != "3\n4\n0123456789ab\nc_" {
		t.Errorf("larger: %q", text(s))
	}
	fmt.Fprint(s, "\x1b[?1049hother")
	s.Resize(3, 10)
	fmt.Fprint(s, "\x1b[?1049l")
	if text(s) != "4\n0123456789\nc_" {
		t.Errorf("back from the alternate screen: %q", text(s))
	}
	s.Resize(1<<40, -5)
	if rows, columns := s.Size(); rows != MaxRows || columns != MinColumns {
		t.Errorf("the size is %d, %d", rows, columns)
	}
}

func TestAnswers(t *testing.T) {
	s := New(5, 10)
	fmt.Fprint(s, "\x1b[2;3H\x1b[6n\x1b[5n\x1b[c\x1b[2;4r\x1b[?6h\x1b[6n")
	if got := string(s.Answers()); got != "\x1b[2;3R\x1b[0n\x1b[?1;2c\x1b[1;1R" {
		t.Errorf("got %q", got)
	}
	fmt.Fprint(s, "\x1b[21t\x1b]0;evil\x07\x1b[21t\x1bP$qm\x1b\\\x1b[?1$p\x05")
	if got := s.Answers(); len(got) > 0 {
		t.Errorf("the terminal answers %q", got)
	}
	fmt.Fprint(s, strings.Repeat("\x1b[6n", 10000))
	if got := s.Answers(); len(got) > mostAnswers {
		t.Errorf("there are %d bytes of answers", len(got))
	}
}

func TestKeys(t *testing.T) {
	for modes, tests := range map[string]map[Key]string{
		"": {
			{Text: "ä\n"}:                                 "ä\r",
			{Name: "Enter"}:                               "\r",
			{Name: "Tab"}:                                 "\t",
			{Name: "Tab", Shift: true}:                    "\x1b[Z",
			{Name: "Backspace"}:                           "\x7f",
			{Name: "Backspace", Alt: true}:                "\x1b\x7f",
			{Name: "Backspace", Control: true}:            "\b",
			{Name: "Escape"}:                              "\x1b",
			{Name: "c", Control: true}:                    "\x03",
			{Name: "[", Control: true}:                    "\x1b",
			{Name: " ", Control: true}:                    "\x00",
			{Name: "_", Control: true}:                    "\x1f",
			{Name: "1", Control: true}:                    "",
			{Name: "é", Control: true}:                    "",
			{Name: "b", Alt: true}:                        "\x1bb",
			{Name: "é", Alt: true}:                        "\x1bé",
			{Name: "ArrowUp"}:                             "\x1b[A",
			{Name: "ArrowRight", Control: true}:           "\x1b[1;5C",
			{Name: "ArrowLeft", Shift: true, Alt: true}:   "\x1b[1;4D",
			{Name: "Delete"}:                              "\x1b[3~",
			{Name: "PageUp", Control: true}:               "\x1b[5;5~",
			{Name: "F1"}:                                  "\x1bOP",
			{Name: "F12"}:                                 "\x1b[24~",
			{Name: "Shift"}:                               "",
			{}:                                            "",
			{Paste: "a\nb\r\nc\td\x1b[201~\x03\u0085 é😀"}: "a\rb\rc\td[201~ é😀",
		},
		"\x1b[?1h\x1b[?2004h": {
			{Name: "ArrowUp"}:                "\x1bOA",
			{Name: "Home"}:                   "\x1bOH",
			{Name: "ArrowUp", Control: true}: "\x1b[1;5A",
			{Paste: "a\x1b[201~\nb"}:         "\x1b[200~a[201~\rb\x1b[201~",
		},
	} {
		s := New(5, 10)
		fmt.Fprint(s, modes)
		for key, want := range tests {
			if got := s.Encode(key); got != want {
				t.Errorf("%+v: got %q, want %q", key, got, want)
			}
		}
	}
}

// BenchmarkHostile takes 32 KiB of the most costly sequences known.
func BenchmarkHostile(b *testing.B) {
	for name, sequence := range map[string]string{"scroll": "\x1b[S", "scroll all": "x\x1b[999S", "repeat": "a\x1b[999b", "insert": "\x1b[999L", "text": "text \r\n", "insert characters": "\x1b[H\x1b[99@"} {
		text := []byte(strings.Repeat(sequence, 32<<10/len(sequence)))
		b.Run(name, func(b *testing.B) {
			s := New(MaxRows, MaxColumns)
			for b.Loop() {
				s.Write(text)
			}
		})
	}
}
