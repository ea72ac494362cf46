package compile

import (
	"regexp/syntax"
)

// maxRegexp is how many parts a regular expression may have when its repetitions are written
// out. Each part takes about 100 bytes in every node, so that an expression takes at most some
// hundred kilobytes. The value of a header may have 4,096 characters, which could otherwise
// stand for 600,000 parts.
const maxRegexp = 4096

// checkRegexp tells whether nodes can match a regular expression.
func checkRegexp(text string) fault {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return unsupported("the regular expression %q is not of RE2: %v", text, err)
	}
	if sizeOf(parsed) > maxRegexp {
		return unsupported("the regular expression %q is too large: its repetitions make more than %d parts of it", text, maxRegexp)
	}
	return fault{}
}

// sizeOf returns how many parts an expression has when its repetitions are written out, or
// something above maxRegexp if there are more.
func sizeOf(expression *syntax.Regexp) int {
	size := 1 + len(expression.Rune)
	for _, sub := range expression.Sub {
		if size += sizeOf(sub); size > maxRegexp {
			return size
		}
	}
	if expression.Op == syntax.OpRepeat {
		size *= max(1, expression.Min, expression.Max)
	}
	return size
}
