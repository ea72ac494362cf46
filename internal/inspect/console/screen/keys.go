package screen

import (
	"strconv"
	"strings"
)

// Key is something that the user types.
type Key struct {
	// Text is text as it was typed, and Paste text from the clipboard.
	Text  string `json:"text"`
	Paste string `json:"paste"`
	// Name is the name of a key as browsers have it (KeyboardEvent.key), such as ArrowUp, or a character with Control or
	// Alt.
	Name    string `json:"name"`
	Shift   bool   `json:"shift"`
	Alt     bool   `json:"alt"`
	Control bool   `json:"control"`
}

// Encode returns what a program gets for a key. It is empty for a key that terminals do not have.
func (s *Screen) Encode(k Key) string {
	switch {
	case k.Text != "":
		return strings.ReplaceAll(k.Text, "\n", "\r")
	case k.Paste != "":
		return s.paste(k.Paste)
	}
	code := s.named(k)
	if code == "" {
		return ""
	}
	if k.Alt && !strings.HasPrefix(code, "\x1b[") && !strings.HasPrefix(code, "\x1bO") {
		code = "\x1b" + code
	}
	return code
}

// paste returns a text of the clipboard without control characters. So it cannot say that it ends, and then type a command.
func (s *Screen) paste(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\r")
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return '\r'
		case r == '\r' || r == '\t' || r >= ' ' && r < del || r > 0x9f:
			return r
		}
		return -1
	}, text)
	if s.bracketedPaste {
		return "\x1b[200~" + text + "\x1b[201~"
	}
	return text
}

// named returns the code of a key with a name.
func (s *Screen) named(k Key) string {
	switch k.Name {
	case "Enter":
		return "\r"
	case "Escape":
		return "\x1b"
	case "Tab":
		if k.Shift {
			return "\x1b[Z"
		}
		return "\t"
	case "Backspace":
		if k.Control {
			return "\b"
		}
		return "\x7f"
	}
	modifier := 1
	for i, held := range []bool{k.Shift, k.Alt, k.Control} {
		if held {
			modifier += 1 << i
		}
	}
	if number, ok := numbered[k.Name]; ok {
		code := "\x1b[" + strconv.Itoa(number)
		if modifier > 1 {
			code += ";" + strconv.Itoa(modifier)
		}
		return code + "~"
	}
	if letter, ok := lettered[k.Name]; ok {
		switch {
		case modifier > 1:
			return "\x1b[1;" + strconv.Itoa(modifier) + letter
		case s.applicationCursor || letter >= "P": // F1 to F4
			return "\x1bO" + letter
		}
		return "\x1b[" + letter
	}
	if len(k.Name) != 1 {
		if k.Control || len([]rune(k.Name)) != 1 {
			return ""
		}
		return k.Name
	}
	if k.Control {
		return controlled(k.Name[0])
	}
	return k.Name
}

// controlled returns the code of a character with the control key.
func controlled(b byte) string {
	switch {
	case b >= 'a' && b <= 'z', b >= '@' && b <= '_':
		return string(rune(b & 0x1f))
	case b == ' ':
		return "\x00"
	case b == '/':
		return "\x1f"
	case b == '?':
		return "\x7f"
	}
	return ""
}

// lettered are the keys whose code ends with a letter, and numbered those whose code has a number.
var (
	lettered = map[string]string{
		"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "End": "F", "Home": "H",
		"F1": "P", "F2": "Q", "F3": "R", "F4": "S",
	}
	numbered = map[string]int{
		"Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6,
		"F5": 15, "F6": 17, "F7": 18, "F8": 19, "F9": 20, "F10": 21, "F11": 23, "F12": 24,
	}
)
