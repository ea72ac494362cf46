// Package hosts says to which listener and to which rules a host name belongs. Package sockets
// asks with the server name of a handshake, package requests with the host of a request. Both
// get a Name from here and look it up in a Table from here. So the same name leads to the same
// listener, however a client writes it.
package hosts

import "strings"

// longestName and longestLabel are how many bytes a DNS name and its parts may have (RFC 1035,
// section 2.3.4).
const (
	longestName  = 253
	longestLabel = 63
)

// Name is a host name that a client asks for, in the only form that is compared: lower case,
// without a port and without a dot at the end. The zero Name is that of a client that names no
// host. FromServerName and FromHeader make all others.
type Name struct{ text string }

// String returns the name. It is safe in a URL and in a header.
func (n Name) String() string { return n.text }

// FromServerName returns the name in the ClientHello of a handshake (RFC 6066, section 3). It
// returns false for what is no DNS name: a port, an empty label, too many bytes. Nobody may
// serve such a connection, because its requests could have a name that leads elsewhere.
func FromServerName(text string) (Name, bool) {
	if text == "" {
		return Name{}, true
	}
	text = strings.TrimSuffix(text, ".")
	return Name{strings.ToLower(text)}, isName(text)
}

// FromHeader returns the name in a Host header or in an :authority, which may have a port. An
// IPv6 address keeps its brackets. It returns false for what is neither a DNS name nor an
// address.
func FromHeader(text string) (Name, bool) {
	if strings.HasPrefix(text, "[") {
		end := strings.IndexByte(text, ']')
		if end < 2 || !isPort(text[end+1:]) || strings.Trim(text[1:end], "0123456789abcdefABCDEF:.") != "" {
			return Name{}, false
		}
		return Name{strings.ToLower(text[:end+1])}, true
	}
	if at := strings.IndexByte(text, ':'); at >= 0 {
		if !isPort(text[at:]) {
			return Name{}, false
		}
		text = text[:at]
	}
	return FromServerName(text)
}

// isName tells whether a text is a DNS name. Underscores are allowed, because names of hosts
// have them.
func isName(text string) bool {
	if len(text) > longestName {
		return false
	}
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > longestLabel {
			return false
		}
		for i := range len(label) {
			switch c := label[i]; {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
	}
	return true
}

// isPort tells whether a text is empty or a colon with a number.
func isPort(text string) bool {
	if text == "" {
		return true
	}
	for i := 1; i < len(text); i++ {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text[0] == ':' && len(text) <= len(":65535")
}
