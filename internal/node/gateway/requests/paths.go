package requests

import (
	"errors"
	"strings"
)

// path is the path of a request in the three forms that routing needs.
//
// Backends get the path as the client has sent it, byte by byte. But routes are chosen by what
// a backend makes of it, so that "/public/../admin" and "/public/%2e%2e/admin" are requests for
// "/admin". A path that backends understand in different ways is refused:
//
//   - an encoded slash or backslash beside a dot segment ("..%2f"), and a dot segment with
//     parameters ("..;a"): some servers take it for a dot segment, others do not
//   - a dot segment that leaves the root
//   - a backslash, a fragment, a NUL, white space and control characters, encoded or not
//     where servers differ
//
// An encoded slash alone is a part of its segment, as it is for Envoy, except on hosts with paths
// of different rights: see guard.go. Repeated slashes are one slash, as they are for nginx.
type path struct {
	// raw is what the client has sent.
	raw string
	// clean is raw without dot segments and repeated slashes. Its escapes are those of raw.
	clean string
	// match is clean without escapes, except those of "/" and "%". It has as many segments.
	match string
}

var (
	errPathStart   = errors.New("the path does not begin with a slash")
	errPathByte    = errors.New("the path has a character that must be escaped")
	errPathEscape  = errors.New("the path has an escape that no path may have")
	errPathOutside = errors.New("the path leaves the root")
	errPathDots    = errors.New("the path has an ambiguous dot segment")
)

// parsePath returns the forms of a path. It fails for paths that servers understand in
// different ways.
func parsePath(raw string) (path, error) {
	if raw == "" || raw[0] != '/' {
		return path{}, errPathStart
	}
	if !isSafe(raw) || strings.IndexByte(raw, '\\') >= 0 {
		return path{}, errPathByte
	}
	if isPlain(raw) {
		return path{raw, raw, raw}, nil
	}
	// The segments that stay, as they are and without escapes.
	var kept, decoded []string
	open := false // whether the path ends with a slash
	for segment := range strings.SplitSeq(raw[1:], "/") {
		plain, err := unescape(segment)
		if err != nil {
			return path{}, err
		}
		open = true
		switch plain {
		case "", ".":
		case "..":
			if len(kept) == 0 {
				return path{}, errPathOutside
			}
			kept, decoded = kept[:len(kept)-1], decoded[:len(decoded)-1]
		default:
			if hidesDots(plain) {
				return path{}, errPathDots
			}
			kept, decoded, open = append(kept, segment), append(decoded, plain), false
		}
	}
	end := ""
	if open && len(kept) > 0 {
		end = "/"
	}
	return path{raw, "/" + strings.Join(kept, "/") + end, "/" + strings.Join(decoded, "/") + end}, nil
}

// isSafe tells whether a path or a query has only bytes that may stand in the first line of a
// request. Bytes beyond ASCII are not allowed by the standard, but browsers' users send them.
func isSafe(text string) bool {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == 0x7f || c == '#' {
			return false
		}
	}
	return true
}

// isPlain tells whether all forms of a path are the same.
func isPlain(raw string) bool {
	for i := range len(raw) {
		switch raw[i] {
		case '%':
			return false
		case '/':
			if i+1 < len(raw) && (raw[i+1] == '/' || raw[i+1] == '.') {
				return false
			}
		}
	}
	return true
}

// unescape returns a segment without escapes, except those of "/" and "%".
func unescape(segment string) (string, error) {
	if strings.IndexByte(segment, '%') < 0 {
		return segment, nil
	}
	var plain strings.Builder
	plain.Grow(len(segment))
	for i := 0; i < len(segment); i++ {
		c := segment[i]
		if c != '%' {
			plain.WriteByte(c)
			continue
		}
		if i+2 >= len(segment) || !isHex(segment[i+1]) || !isHex(segment[i+2]) {
			return "", errPathEscape
		}
		c = fromHex(segment[i+1])<<4 | fromHex(segment[i+2])
		i += 2
		switch c {
		case 0:
			return "", errPathEscape
		case '/':
			plain.WriteString("%2F")
		case '%':
			plain.WriteString("%25")
		default:
			plain.WriteByte(c)
		}
	}
	return plain.String(), nil
}

// hidesDots tells whether some servers would find a dot segment in a segment without escapes
// that is none.
func hidesDots(segment string) bool {
	if segment[0] != '.' && !strings.ContainsAny(segment, `%\`) {
		return false
	}
	for part := range strings.SplitSeq(strings.ReplaceAll(segment, "%2F", `\`), `\`) {
		part, _, _ = strings.Cut(part, ";")
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func fromHex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	}
	return c - '0'
}

// replacePrefix returns the path with a value in the place of the segments of a prefix that it
// has. The rest keeps its escapes.
func (p path) replacePrefix(prefix, value string) string {
	rest := p.clean
	if prefix == "" && rest == "/" {
		rest = "" // the whole path, which has no segments
	}
	for range strings.Count(prefix, "/") {
		next := strings.IndexByte(rest[1:], '/')
		if next < 0 {
			rest = ""
			break
		}
		rest = rest[next+1:]
	}
	return rooted(strings.TrimSuffix(value, "/") + rest)
}

// rooted returns a path that begins with a slash.
func rooted(path string) string {
	if path == "" || path[0] != '/' {
		return "/" + path
	}
	return path
}
