package screen

import (
	"fmt"
	"slices"
)

// control does what a sequence of ESC [ says. Numbers beyond the screen stand for its end.
func (s *Screen) control(final byte, params []param) {
	value := func(i, otherwise int) int {
		if i < len(params) && params[i].value != 0 {
			return params[i].value
		}
		return otherwise
	}
	n := value(0, 1)
	switch {
	case s.more == '!' && final == 'p' && s.private == 0:
		s.softReset()
	case s.more != 0:
	case s.private == '?':
		s.controlPrivate(final, params)
	case s.private != 0:
	case s.move(final, n, value(1, 1)) || s.erase(final, n, value(0, 0)):
	default:
		switch final {
		case 'b':
			if s.last != 0 {
				for range min(n, s.columns) {
					s.put(s.last)
				}
			}
		case 'c':
			s.answer("\x1b[?1;2c") // a VT100 with options, as xterm says at least
		case 'g':
			switch value(0, 0) {
			case 0:
				s.stops[s.column] = false
			case 3:
				s.stops = [MaxColumns]bool{}
			}
		case 'h', 'l':
			for _, p := range params {
				switch p.value {
				case 4:
					s.insert = final == 'h'
				case 20:
					s.newline = final == 'h'
				}
			}
		case 'm':
			s.restyle(params)
		case 'n':
			s.report(value(0, 0))
		case 'r':
			if top, bottom := n-1, min(value(1, s.rows), s.rows)-1; top < bottom {
				s.top, s.bottom = top, bottom
				s.moveTo(0, 0)
			}
		case 's':
			s.saved = s.cursor
		case 'u':
			s.restore(s.saved)
		}
	}
}

// move moves the cursor. It returns false for a sequence that does something else.
func (s *Screen) move(final byte, n, second int) bool {
	switch final {
	case 'A', 'F':
		top := 0
		if s.row >= s.top {
			top = s.top
		}
		s.row = max(s.row-n, top)
	case 'B', 'E', 'e':
		bottom := s.rows - 1
		if s.row <= s.bottom {
			bottom = s.bottom
		}
		s.row = min(s.row+n, bottom)
	case 'C', 'a':
		s.column = min(s.column+n, s.columns-1)
	case 'D':
		s.column = max(s.column-n, 0)
	case 'G', '`':
		s.column = min(n, s.columns) - 1
	case 'H', 'f':
		s.moveTo(n-1, second-1)
	case 'd':
		s.moveTo(n-1, s.column)
	case 'I':
		s.tab(n)
	case 'Z':
		for n = min(n, s.columns); n > 0 && s.column > 0; n-- {
			for s.column--; s.column > 0 && !s.stops[s.column]; {
				s.column--
			}
		}
	default:
		return false
	}
	if final == 'E' || final == 'F' {
		s.column = 0
	}
	s.full = false
	return true
}

// erase erases, inserts and deletes. It returns false for a sequence that does something else. Part is 0 to the end, 1 from
// the beginning, and 2 all.
func (s *Screen) erase(final byte, n, part int) bool {
	switch final {
	case 'J':
		s.eraseScreen(part)
	case 'K':
		switch part {
		case 0:
			s.blank(s.row, s.column, s.columns)
		case 1:
			s.blank(s.row, 0, s.column+1)
		case 2:
			s.blank(s.row, 0, s.columns)
		}
	case 'L', 'M':
		if s.row < s.top || s.row > s.bottom {
			break
		}
		if s.column = 0; final == 'L' {
			s.scrollDown(s.row, n)
		} else {
			s.scrollUp(s.row, n)
		}
	case '@':
		s.shiftRight(n)
	case 'P':
		l := s.line(s.row)
		copy(l.cells[s.column:], l.cells[min(s.column+n, s.columns):])
		s.blank(s.row, max(s.columns-n, s.column), s.columns)
	case 'X':
		s.blank(s.row, s.column, min(s.column+n, s.columns))
	case 'S':
		s.scrollUp(s.top, n)
	case 'T':
		s.scrollDown(s.top, n)
	default:
		return false
	}
	s.full = false
	return true
}

func (s *Screen) eraseScreen(part int) {
	first, last := 0, s.rows-1
	switch part {
	case 0:
		s.blank(s.row, s.column, s.columns)
		first = s.row + 1
	case 1:
		s.blank(s.row, 0, s.column+1)
		last = s.row - 1
	case 2:
	case 3:
		s.past = nil
		s.cleared++
		return
	default:
		return
	}
	for row := first; row <= last; row++ {
		s.blank(row, 0, s.columns)
	}
}

// controlPrivate does what a sequence of ESC [ ? says.
func (s *Screen) controlPrivate(final byte, params []param) {
	if final == 'J' || final == 'K' { // erase what is not protected: nothing ever is
		part := 0
		if len(params) > 0 {
			part = params[0].value
		}
		s.erase(final, 1, part)
	}
	if final != 'h' && final != 'l' {
		return
	}
	on := final == 'h'
	for _, p := range params {
		switch p.value {
		case 1:
			s.applicationCursor = on
		case 6:
			s.origin = on
			s.moveTo(0, 0)
		case 7:
			s.wrap = on
		case 25:
			s.hidden = !on
		case 47, 1047:
			s.switchTo(on)
		case 1048:
			if on {
				s.saved = s.cursor
			} else {
				s.restore(s.saved)
			}
		case 1049:
			s.switchTo(on)
		case 2004:
			s.bracketedPaste = on
		}
	}
}

// switchTo shows the alternate screen, which begins blank, or the main one as it was.
func (s *Screen) switchTo(alternate bool) {
	switch {
	case alternate && s.main == nil:
		s.main, s.savedMain = s.lines, s.cursor
		s.lines = nil
		for range s.rows {
			s.lines = append(s.lines, s.newLine())
		}
	case !alternate && s.main != nil:
		s.lines, s.main = s.main, nil
		s.restore(s.savedMain)
	}
	s.top, s.bottom = 0, s.rows-1
}

// softReset makes settings those of the beginning, and leaves the screen as it is.
func (s *Screen) softReset() {
	s.modes = modes{wrap: true, bracketedPaste: s.bracketedPaste}
	s.style, s.origin, s.drawing, s.shift = Style{}, false, [2]bool{}, 0
	s.top, s.bottom, s.saved = 0, s.rows-1, cursor{}
}

// report answers a question of the program.
func (s *Screen) report(question int) {
	switch question {
	case 5:
		s.answer("\x1b[0n")
	case 6:
		row := s.row
		if s.origin {
			row -= s.top
		}
		s.answer(fmt.Sprintf("\x1b[%d;%dR", row+1, s.column+1))
	}
}

// mostAnswers is how many bytes of answers are kept until the caller takes them.
const mostAnswers = 1024

func (s *Screen) answer(text string) {
	if len(s.answers)+len(text) <= mostAnswers {
		s.answers = append(s.answers, text...)
	}
}

// restore puts the cursor back.
func (s *Screen) restore(c cursor) {
	s.cursor = c
	s.row, s.column = min(s.row, s.rows-1), min(s.column, s.columns-1)
	s.full = s.full && s.column == s.columns-1
}

// moveTo moves the cursor. If origin is set, rows count from the top of the region that scrolls.
func (s *Screen) moveTo(row, column int) {
	first, last := 0, s.rows-1
	if s.origin {
		first, last = s.top, s.bottom
	}
	s.row, s.column, s.full = min(max(first+row, first), last), min(max(column, 0), s.columns-1), false
}

// tab moves the cursor to the n-th tab stop from here.
func (s *Screen) tab(n int) {
	for n = min(n, s.columns); n > 0 && s.column < s.columns-1; n-- {
		for s.column++; s.column < s.columns-1 && !s.stops[s.column]; {
			s.column++
		}
	}
	s.full = false
}

// scrollUp scrolls from a row to the bottom of the region.
func (s *Screen) scrollUp(from, n int) {
	for range min(n, s.bottom-from+1) {
		l := s.lines[from]
		copy(s.lines[from:s.bottom], s.lines[from+1:s.bottom+1])
		s.lines[s.bottom] = l
		s.renew(s.bottom)
	}
}

// scrollDown scrolls from a row to the bottom of the region, the other way.
func (s *Screen) scrollDown(from, n int) {
	for range min(n, s.bottom-from+1) {
		l := s.lines[s.bottom]
		copy(s.lines[from+1:s.bottom+1], s.lines[from:s.bottom])
		s.lines[from] = l
		s.renew(from)
	}
}

// renew makes a new line of one that has left.
func (s *Screen) renew(row int) {
	l := s.lines[row]
	s.nextID++
	l.ID, l.Drawn = s.nextID, ""
	if l.used || s.style.Back != 0 {
		s.blank(row, 0, s.columns)
		l.used = s.style.Back != 0
	}
}

// blank erases a part of a line. The present background stays.
func (s *Screen) blank(row, from, to int) {
	if from < to {
		cells := s.line(row).cells[from:to]
		clear(cells)
		if s.style.Back != 0 {
			for i := range cells {
				cells[i].style.Back = s.style.Back
			}
		}
	}
}

// line returns a line that is about to change.
func (s *Screen) line(row int) *Line {
	l := s.lines[row]
	l.Drawn, l.used = "", true
	return l
}

// shiftRight makes room for n characters at the cursor.
func (s *Screen) shiftRight(n int) {
	n = min(n, s.columns-s.column)
	l := s.line(s.row)
	l.cells = slices.Insert(l.cells, s.column, make([]cell, n)...)[:s.columns]
	s.blank(s.row, s.column, s.column+n)
}
