package requests

import (
	"iter"
	"strings"
)

// hosts finds what belongs to a host name. Keys are exact names, names with "*." in front, and
// the empty name, which fits all.
type hosts[T any] struct {
	exact map[string]T
	// wildcard is by what comes after the star: ".example.com".
	wildcard map[string]T
	others   T
	// hasOthers tells whether the empty name is there.
	hasOthers bool
}

// entry returns what is stored under a name, after it has called create for a new name.
func (h *hosts[T]) entry(name string, create func() T) T {
	name = strings.ToLower(name)
	if name == "" {
		if !h.hasOthers {
			h.others, h.hasOthers = create(), true
		}
		return h.others
	}
	index := &h.exact
	if rest, is := strings.CutPrefix(name, "*"); is {
		index, name = &h.wildcard, rest
	}
	found, is := (*index)[name]
	if !is {
		if *index == nil {
			*index = map[string]T{}
		}
		found = create()
		(*index)[name] = found
	}
	return found
}

// all returns what is stored under all names.
func (h *hosts[T]) all() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, index := range []map[string]T{h.exact, h.wildcard} {
			for _, value := range index {
				if !yield(value) {
					return
				}
			}
		}
		if h.hasOthers {
			yield(h.others)
		}
	}
}

// fitting returns what fits a host name in lower case: the exact name, then the wildcards, the
// longest first, and then the empty name.
func (h *hosts[T]) fitting(host string) iter.Seq[T] {
	return func(yield func(T) bool) {
		if found, is := h.exact[host]; is && !yield(found) {
			return
		}
		if len(h.wildcard) > 0 {
			// A wildcard stands for at least one label.
			for i := 1; i < len(host); i++ {
				if host[i] != '.' {
					continue
				}
				if found, is := h.wildcard[host[i:]]; is && !yield(found) {
					return
				}
			}
		}
		if h.hasOthers {
			yield(h.others)
		}
	}
}

// best returns what fits a host name best.
func (h *hosts[T]) best(host string) (found T) {
	for found = range h.fitting(host) {
		break
	}
	return found
}

// hostOf returns the name of a Host header in lower case, without the port and the dot at the
// end. It returns false if it is no host: what follows goes into the Location of redirects and
// to backends.
func hostOf(header string) (string, bool) {
	name := header
	for i := range len(header) {
		c := header[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == '_',
			c == ':', c == '[', c == ']':
		default:
			return "", false
		}
	}
	if strings.HasPrefix(name, "[") {
		end := strings.IndexByte(name, ']')
		if end < 0 || end+1 < len(name) && name[end+1] != ':' {
			return "", false
		}
		return strings.ToLower(name[:end+1]), isPort(name[end+1:])
	}
	if at := strings.IndexByte(name, ':'); at >= 0 {
		if !isPort(name[at:]) {
			return "", false
		}
		name = name[:at]
	}
	if strings.ContainsAny(name, "[]") {
		return "", false
	}
	return strings.ToLower(strings.TrimSuffix(name, ".")), true
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
