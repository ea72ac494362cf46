package screen

import (
	"unicode/utf8"
)

// state is where in a sequence the parser is.
type state uint8

const (
	ground state = iota
	// escape is behind ESC, and escapeMore behind ESC and a character such as "(".
	escape
	escapeMore
	// control is in a sequence that begins with ESC [.
	control
	// foreign is in a text for the terminal: a title, a link, the clipboard, a picture. All of it is thrown away.
	foreign
)

// mostParams is how many numbers of a sequence are read, and highest is the highest number.
const (
	mostParams = 32
	highest    = 9999
)

// parser reads control sequences. It keeps only a bounded part of a sequence.
type parser struct {
	state state
	// partial is the beginning of a character in UTF-8.
	partial [utf8.UTFMax]byte
	length  int
	// private is a character such as "?" behind ESC [, and more is one such as "!" before the last, or behind ESC.
	private, more byte
	params        [mostParams]param
	count         int
	// odd is true for a sequence that no terminal knows.
	odd bool
}

// Write takes what the program writes. It never fails.
func (s *Screen) Write(p []byte) (int, error) {
	for _, b := range p {
		s.read(b)
	}
	return len(p), nil
}

const (
	bell   = 0x07
	cancel = 0x18
	sub    = 0x1a
	esc    = 0x1b
	del    = 0x7f
)

// read takes a byte.
func (s *Screen) read(b byte) {
	if s.state == ground && b >= utf8.RuneSelf {
		s.readPart(b)
		return
	}
	if s.length > 0 { // a character that ends too early
		s.length = 0
		s.put(utf8.RuneError)
	}
	switch {
	case b == esc:
		s.state, s.private, s.more, s.count, s.odd = escape, 0, 0, 0, false
	case b == cancel || b == sub:
		s.state = ground
	case s.state == foreign:
		if b == bell {
			s.state = ground
		}
	case b < ' ':
		s.execute(b)
	case b == del || b >= utf8.RuneSelf:
	case s.state == ground:
		s.put(rune(b))
	case s.state == escape:
		s.readEscape(b)
	case s.state == escapeMore:
		s.state = ground
		s.designate(b)
	case s.state == control:
		s.readControl(b)
	}
}

// readPart takes a byte of a character that has several.
func (s *Screen) readPart(b byte) {
	s.partial[s.length] = b
	s.length++
	for s.length > 0 && utf8.FullRune(s.partial[:s.length]) {
		r, size := utf8.DecodeRune(s.partial[:s.length])
		s.length = copy(s.partial[:], s.partial[size:s.length])
		s.put(r)
	}
}

// readEscape takes the byte behind ESC.
func (s *Screen) readEscape(b byte) {
	switch {
	case b == '[':
		s.state = control
		return
	case b == ']' || b == 'P' || b == 'X' || b == '^' || b == '_':
		s.state = foreign
		return
	case b < '0':
		s.state, s.more = escapeMore, b
		return
	}
	s.state = ground
	switch b {
	case '7':
		s.saved = s.cursor
	case '8':
		s.restore(s.saved)
	case 'D':
		s.index()
	case 'E':
		s.column, s.full = 0, false
		s.index()
	case 'H':
		s.stops[s.column] = true
	case 'M':
		s.reverseIndex()
	case 'c':
		s.reset()
	}
}

// designate ends a sequence of ESC and two characters.
func (s *Screen) designate(b byte) {
	switch s.more {
	case '(':
		s.drawing[0] = b == '0'
	case ')':
		s.drawing[1] = b == '0'
	case '#':
		if b == '8' { // fill the screen with E, to adjust it
			for row := range s.rows {
				l := s.line(row)
				for i := range l.cells {
					l.cells[i] = cell{char: 'E'}
				}
			}
		}
	}
}

// readControl takes a byte of a sequence that begins with ESC [.
func (s *Screen) readControl(b byte) {
	switch {
	case b >= '0' && b <= '9':
		if s.count == 0 {
			s.count = 1
			s.params[0] = param{}
		}
		if s.count <= mostParams {
			p := &s.params[s.count-1]
			p.value = min(10*p.value+int(b-'0'), highest)
		}
	case b == ';' || b == ':':
		if s.count == 0 {
			s.count = 1
			s.params[0] = param{}
		}
		s.count = min(s.count+1, mostParams+1)
		if s.count <= mostParams {
			s.params[s.count-1] = param{joined: b == ':'}
		}
	case b >= '<' && b <= '?':
		s.odd = s.odd || s.count > 0 || s.private != 0
		s.private = b
	case b < '0':
		s.odd = s.odd || s.more != 0
		s.more = b
	default:
		s.state = ground
		if !s.odd {
			s.control(b, s.params[:min(s.count, mostParams)])
		}
	}
}

// execute does what a control character says.
func (s *Screen) execute(b byte) {
	switch b {
	case '\b':
		s.column, s.full = max(s.column-1, 0), false
	case '\t':
		s.tab(1)
	case '\n', '\v', '\f':
		if s.newline {
			s.column = 0
		}
		s.index()
	case '\r':
		s.column, s.full = 0, false
	case 0x0e, 0x0f: // shift out, shift in
		s.shift = int(0x0f - b)
	}
}
