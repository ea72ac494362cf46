package routing

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// maxRegexps is how many steps (regexp/syntax.Inst) the regular expressions of a route may
// have together. A step takes about 40 bytes, and a short pattern such as (a{1000}){1000}
// can ask for millions of them. Those of users have about 50.
const maxRegexps = 20_000

// hostname is the form of host names, as the Gateway API has it.
var hostname = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// isHostname tells whether a text is a host name, or has "*." before one if wildcard is
// true.
func isHostname(text string, wildcard bool) bool {
	if len(text) > maxHostname {
		return false
	}
	if wildcard {
		text = strings.TrimPrefix(text, "*.")
	}
	return hostname.MatchString(text)
}

// isName tells whether a text can be a name that the server has chosen. It is safe in logs.
func isName(text string) bool { return len(text) <= maxName && isVisible(text) }

// isVisible tells whether a text has only visible characters of ASCII, and at least one.
func isVisible(text string) bool {
	return text != "" && strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}

// isText tells whether a text has no control characters, and is not too long.
func isText(text string) bool {
	return len(text) <= maxText && strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// isFieldValue tells whether a text can be the value of a header (RFC 9110, section 5.5).
func isFieldValue(text string) bool { return isText(strings.ReplaceAll(text, "\t", " ")) }

// isToken tells whether a text can be a method, or the name of a header or of a cookie
// (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	return isName(text) && !strings.ContainsAny(text, `"(),/:;<=>?@[\]{}`)
}

// isFault tells whether a number is the status of an error.
func isFault(status int) bool { return status >= 400 && status <= 599 }

// CompileRegexp compiles a pattern of a Match or Field, which must match the whole text. It
// fails if the pattern is invalid or too large.
func CompileRegexp(pattern string) (*regexp.Regexp, error) {
	size := 0
	if err := addRegexp(pattern, &size); err != nil {
		return nil, err
	}
	if size > maxRegexps {
		return nil, fmt.Errorf("the regular expression is too large: %d steps of at most %d", size, maxRegexps)
	}
	return regexp.Compile(whole(pattern))
}

func whole(pattern string) string { return `\A(?:` + pattern + `)\z` }

// addRegexp checks a pattern without compiling it, and adds its steps to size.
func addRegexp(pattern string, size *int) error {
	if len(pattern) > maxText {
		return errors.New("a regular expression is too long")
	}
	// By itself, a pattern such as a)|(b is invalid. In whole, \Q is invalid without \E.
	for _, text := range []string{pattern, whole(pattern)} {
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			return fmt.Errorf("invalid regular expression: %w", err)
		}
		if text != pattern {
			*size = min(*size+steps(parsed), maxRegexps+1)
		}
	}
	return nil
}

// steps returns about how many steps an expression has when it is compiled, or maxRegexps+1
// if it has more. Repetitions are written out then.
func steps(re *syntax.Regexp) int {
	const enough = maxRegexps + 1
	if re.Op == syntax.OpLiteral {
		return min(len(re.Rune), enough)
	}
	size := 0
	for _, sub := range re.Sub {
		size = min(size+steps(sub), enough)
	}
	if re.Op == syntax.OpRepeat {
		// Both are at most 1000, and Max is -1 if there is no limit.
		size = min(size*max(re.Min, re.Max, 1), enough)
	}
	// Groups take two. Classes have pairs of runes, which equal classes share.
	return min(size+2+len(re.Rune)/16, enough)
}
