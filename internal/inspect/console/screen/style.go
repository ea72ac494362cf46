package screen

// Style is how a character looks. The zero Style is the terminal's own.
type Style struct {
	// Front and Back are 0 for the terminal's own colour, and 1 to 16 for one of the sixteen: black, red, green, yellow,
	// blue, magenta, cyan, white, and the same bright.
	Front, Back                              uint8
	Bold, Italic, Underline, Struck, Inverse bool
}

// param is a number of a sequence.
type param struct {
	value int
	// joined is true if a colon stands in front of it, so that it belongs to the number before.
	joined bool
}

// restyle does what a sequence for the style says (SGR). Blinking, faint and hidden text is as other text: everything can be
// read.
func (s *Screen) restyle(params []param) {
	if len(params) == 0 {
		params = []param{{}}
	}
	for len(params) > 0 {
		n := 1
		for n < len(params) && params[n].joined {
			n++
		}
		group := params[:n]
		if code := group[0].value; n == 1 && (code == 38 || code == 48 || code == 58) {
			n = colourLength(params)
			group = params[:n]
		}
		s.apply(group)
		params = params[n:]
	}
}

// colourLength returns how many numbers a colour takes that has semicolons between its numbers.
func colourLength(params []param) int {
	n := 1
	if len(params) > 1 {
		switch params[1].value {
		case 5:
			n = 3
		case 2:
			n = 5
		}
	}
	return min(n, len(params))
}

// apply applies one attribute. Its further numbers are those of a colour or of a kind of line.
func (s *Screen) apply(group []param) {
	style, code := &s.style, group[0].value
	switch {
	case code == 0:
		*style = Style{}
	case code == 1:
		style.Bold = true
	case code == 22:
		style.Bold = false
	case code == 3 || code == 23:
		style.Italic = code == 3
	case code == 4 || code == 21 || code == 24:
		style.Underline = code != 24 && (len(group) == 1 || group[1].value != 0)
	case code == 7 || code == 27:
		style.Inverse = code == 7
	case code == 9 || code == 29:
		style.Struck = code == 9
	case code >= 30 && code <= 37:
		style.Front = uint8(code-30) + 1
	case code >= 40 && code <= 47:
		style.Back = uint8(code-40) + 1
	case code >= 90 && code <= 97:
		style.Front = uint8(code-90) + 9
	case code >= 100 && code <= 107:
		style.Back = uint8(code-100) + 9
	case code == 38:
		style.Front = colour(group, style.Front)
	case code == 48:
		style.Back = colour(group, style.Back)
	case code == 39:
		style.Front = 0
	case code == 49:
		style.Back = 0
	}
}

// colour returns the nearest of the sixteen colours, or otherwise if the numbers are none of a colour.
func colour(group []param, otherwise uint8) uint8 {
	if len(group) < 3 {
		return otherwise
	}
	switch n := group[2].value; group[1].value {
	case 5:
		return indexed(n, otherwise)
	case 2:
		if len(group) < 5 {
			return otherwise
		}
		last := group[len(group)-3:]
		if len(group) > 6 { // a colour space in front, and a tolerance behind
			last = group[3:6]
		}
		return nearest(last[0].value, last[1].value, last[2].value)
	}
	return otherwise
}

// indexed returns the nearest to one of 256 colours: the sixteen, a cube of 6 by 6 by 6, and 24 greys.
func indexed(n int, otherwise uint8) uint8 {
	level := func(n int) int {
		if n == 0 {
			return 0
		}
		return 55 + 40*n
	}
	switch {
	case n < 16:
		return uint8(n) + 1
	case n < 232:
		n -= 16
		return nearest(level(n/36), level(n/6%6), level(n%6))
	case n < 256:
		grey := 8 + 10*(n-232)
		return nearest(grey, grey, grey)
	}
	return otherwise
}

// sixteen are the sixteen colours of xterm, in red, green and blue.
var sixteen = [16][3]int{
	{0, 0, 0}, {205, 0, 0}, {0, 205, 0}, {205, 205, 0}, {0, 0, 238}, {205, 0, 205}, {0, 205, 205}, {229, 229, 229},
	{127, 127, 127}, {255, 0, 0}, {0, 255, 0}, {255, 255, 0}, {92, 92, 255}, {255, 0, 255}, {0, 255, 255}, {255, 255, 255},
}

// nearest returns the nearest of the sixteen colours.
func nearest(red, green, blue int) (number uint8) {
	least := -1
	for i, c := range sixteen {
		r, g, b := c[0]-min(red, 255), c[1]-min(green, 255), c[2]-min(blue, 255)
		if distance := r*r + g*g + b*b; least < 0 || distance < least {
			least, number = distance, uint8(i)+1
		}
	}
	return number
}
