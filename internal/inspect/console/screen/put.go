package screen

import (
	"unicode"

	"golang.org/x/text/width"
)

// wide tells whether a character takes two cells.
func wide(r rune) bool {
	if r < 0x1100 {
		return false
	}
	kind := width.LookupRune(r).Kind()
	return kind == width.EastAsianWide || kind == width.EastAsianFullwidth
}

// drawings are the characters for drawing lines, in the places of "`" to "~".
var drawings = []rune("◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")

// put writes a character at the cursor.
func (s *Screen) put(r rune) {
	switch {
	case s.drawing[s.shift] && r >= '`' && r <= '~':
		r = drawings[r-'`']
	case r < del:
	case unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Me, r):
		s.mark(r)
		return
	case unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r):
		return // such as marks that turn the direction of writing
	case !unicode.IsPrint(r):
		r = unicode.ReplacementChar
	}
	cells := 1
	if wide(r) {
		cells = 2
	}
	if s.wrap && (s.full || s.column+cells > s.columns) {
		s.column = 0
		s.index()
	}
	s.column = min(s.column, s.columns-cells)
	s.full = false
	if s.insert {
		s.shiftRight(cells)
	}
	l := s.line(s.row)
	l.cells[s.column] = cell{char: r, style: s.style}
	if cells == 2 {
		l.cells[s.column+1] = cell{char: tail, style: s.style}
	}
	s.last = r
	if s.column+cells < s.columns {
		s.column += cells
	} else {
		s.column, s.full = s.columns-1, true
	}
}

// mark puts a mark on the character before the cursor. A character has at most one.
func (s *Screen) mark(r rune) {
	at := s.column - 1
	if s.full {
		at = s.column
	}
	l := s.line(s.row)
	if at > 0 && l.cells[at].char == tail {
		at--
	}
	if at >= 0 && l.cells[at].char > 0 {
		l.cells[at].mark = r
	}
}

// index moves the cursor down, and scrolls at the bottom of the region. A line that so leaves the top of the main screen
// becomes history.
func (s *Screen) index() {
	switch {
	case s.row == s.bottom:
		if s.top == 0 && s.main == nil {
			s.remember(s.lines[0])
		}
		s.scrollUp(s.top, 1)
	case s.row < s.rows-1:
		s.row++
	}
	s.full = false
}

// reverseIndex moves the cursor up, and scrolls at the top of the region.
func (s *Screen) reverseIndex() {
	switch {
	case s.row == s.top:
		s.scrollDown(s.top, 1)
	case s.row > 0:
		s.row--
	}
	s.full = false
}
