// Package screen emulates the screen of a terminal: it reads what a program writes, and has lines of text in styles. The
// program may be an attacker, so any bytes may come. Each sequence of bytes costs at most one pass over the screen, and no
// text of the program is ever kept besides what is on the screen and in the history. Titles, links, the clipboard, pictures
// and the mouse are ignored. The console package calls it.
//
// The sequences are those of ECMA-48 and xterm that programs use with TERM=xterm, which is what containers get.
package screen

import (
	"slices"
	"unicode/utf8"
)

// The least and the greatest size of a screen, and how many lines that have left it are kept.
const (
	MinRows, MaxRows       = 2, 200
	MinColumns, MaxColumns = 10, 400
	History                = 500
)

// Line is a line of the screen or of the history.
type Line struct {
	// ID is the number of the line. No other line of the screen ever has it.
	ID int
	// Drawn is for the caller to keep what it has drawn. It becomes "" when the line changes.
	Drawn string
	cells []cell
	// used is false if nothing was ever written to the line.
	used bool
}

// cell is a place on the screen. The zero cell is blank.
type cell struct {
	char rune
	// mark is put on the character, such as an accent.
	mark  rune
	style Style
}

// tail is in the second cell of a character that takes two.
const tail rune = -1

// cursor is the place where the program writes, and how.
type cursor struct {
	row, column int
	// full is true after the last column was written: the next character begins a new line.
	full  bool
	style Style
	// origin is true if rows count from the top of the region that scrolls.
	origin bool
	// drawing tells of G0 and G1 whether it has lines for drawing, and shift which of the two is in use.
	drawing [2]bool
	shift   int
}

// Screen is the screen. It is not safe for concurrent use.
type Screen struct {
	rows, columns int
	lines         []*Line
	// past are the lines that have left, and up to as many again as are kept.
	past []*Line
	// left is how many lines have left.
	left    int
	cleared int
	nextID  int
	// main is the main screen's lines while a program shows the alternate screen, and nil otherwise.
	main []*Line
	cursor
	saved, savedMain cursor
	// top and bottom are the first and the last row of the region that scrolls.
	top, bottom int
	stops       [MaxColumns]bool
	modes
	parser
	// shown is the line that was last drawn with the cursor.
	shown *Line
	// last is the last character, for a program that repeats it.
	last    rune
	answers []byte
}

// modes are settings of the terminal that a program changes.
type modes struct {
	wrap, insert, newline, hidden     bool
	applicationCursor, bracketedPaste bool
}

// New makes a blank screen.
func New(rows, columns int) *Screen {
	s := &Screen{rows: min(max(rows, MinRows), MaxRows), columns: min(max(columns, MinColumns), MaxColumns)}
	s.reset()
	return s
}

// reset makes the screen blank, and all settings those of the beginning.
func (s *Screen) reset() {
	s.lines, s.main, s.shown = nil, nil, nil
	for range s.rows {
		s.lines = append(s.lines, s.newLine())
	}
	s.cursor, s.saved, s.savedMain = cursor{}, cursor{}, cursor{}
	s.top, s.bottom = 0, s.rows-1
	s.modes = modes{wrap: true}
	for i := range s.stops {
		s.stops[i] = i%8 == 0
	}
	s.last = 0
}

func (s *Screen) newLine() *Line {
	s.nextID++
	return &Line{ID: s.nextID, cells: make([]cell, s.columns)}
}

// Resize changes the size, to the nearest one that can be. Lines keep their text as far as it fits.
func (s *Screen) Resize(rows, columns int) {
	rows, columns = min(max(rows, MinRows), MaxRows), min(max(columns, MinColumns), MaxColumns)
	if rows == s.rows && columns == s.columns {
		return
	}
	s.rows, s.columns = rows, columns
	if s.main != nil {
		s.main = s.fit(s.main, &s.savedMain, true)
		s.lines = s.fit(s.lines, &s.cursor, false)
	} else {
		s.lines = s.fit(s.lines, &s.cursor, true)
	}
	s.top, s.bottom = 0, rows-1
	s.saved.row, s.saved.column = min(s.saved.row, rows-1), min(s.saved.column, columns-1)
	s.shown = nil
}

// fit makes lines fit the size. Lines above leave for the history if keep is true, so that the row of the cursor stays.
func (s *Screen) fit(lines []*Line, at *cursor, keep bool) []*Line {
	for len(lines) > s.rows {
		if at.row < len(lines)-1 {
			lines = lines[:len(lines)-1]
			continue
		}
		if keep {
			s.remember(lines[0])
		}
		lines, at.row = lines[1:], at.row-1
	}
	lines = slices.Clone(lines)
	for _, l := range lines {
		cells := make([]cell, s.columns)
		copy(cells, l.cells)
		l.cells, l.Drawn = cells, ""
	}
	for len(lines) < s.rows {
		lines = append(lines, s.newLine())
	}
	at.row, at.column, at.full = min(at.row, s.rows-1), min(at.column, s.columns-1), false
	return lines
}

// remember puts a copy of a line into the history.
func (s *Screen) remember(l *Line) {
	cells := l.cells
	if !l.used {
		cells = nil
	}
	for len(cells) > 0 && cells[len(cells)-1] == (cell{}) {
		cells = cells[:len(cells)-1]
	}
	if len(s.past) == 2*History { // so that most lines need no copy of the others
		s.past = slices.Clone(s.past[History:])
	}
	s.past = append(s.past, &Line{ID: l.ID, cells: slices.Clone(cells)})
	s.left++
}

// View is what there is to see. It is valid until the next call of another method.
type View struct {
	// Past are the lines that have left the screen, the oldest first, and Lines those on it.
	Past, Lines []*Line
	// Gone is how many lines have left before those of Past.
	Gone int
	// Cleared is how often a program has thrown the past away.
	Cleared int
}

// Look returns what there is to see.
func (s *Screen) Look() View {
	at := s.lines[s.row]
	if s.hidden {
		at = nil
	}
	for _, l := range []*Line{s.shown, at} {
		if l != nil {
			l.Drawn = "" // the cursor has come, has gone, or may have moved
		}
	}
	s.shown = at
	past := s.past[max(len(s.past)-History, 0):]
	return View{past, s.lines, s.left - len(past), s.cleared}
}

// Run is a part of a line that has one style.
type Run struct {
	Text  string
	Style Style
	// Cursor is true for the one character at which the cursor is.
	Cursor bool
}

// Runs returns the text of a line, without blanks at its end.
func (s *Screen) Runs(l *Line) (runs []Run) {
	cells, at := l.cells, -1
	for len(cells) > 0 && cells[len(cells)-1] == (cell{}) {
		cells = cells[:len(cells)-1]
	}
	if l == s.shown {
		at = s.column
		cells = l.cells[:max(len(cells), at+1)]
	}
	var text []byte
	for i := 0; i < len(cells); {
		taken := 1
		if i+1 < len(cells) && cells[i+1].char == tail && wide(cells[i].char) {
			taken = 2
		}
		text = cells[i].write(text, taken)
		next, style, here := i+taken, cells[i].style, at >= i && at < i+taken
		if here || next >= len(cells) || next == at || cells[next].style != style {
			runs = append(runs, Run{string(text), style, here})
			text = text[:0]
		}
		i = next
	}
	return runs
}

// write adds the text of a cell. Half a character that takes two cells is blank.
func (c cell) write(text []byte, cells int) []byte {
	if c.char <= 0 || cells == 1 && wide(c.char) {
		return append(text, ' ')
	}
	text = utf8.AppendRune(text, c.char)
	if c.mark != 0 {
		text = utf8.AppendRune(text, c.mark)
	}
	return text
}

// Answers returns what the terminal answers the program, such as where the cursor is, and forgets it. An answer never has
// text of the program.
func (s *Screen) Answers() []byte {
	answers := s.answers
	s.answers = nil
	return answers
}

// Size returns the size.
func (s *Screen) Size() (rows, columns int) { return s.rows, s.columns }
