package sockets

import "strings"

// longestName is the longest DNS name. A longer one, which only an attacker sends, matches
// only what is for all names.
const longestName = 253

// hosts has values by host name. A name that begins with a dot is a wildcard, and the empty
// name is for all.
type hosts[T any] map[string]T

// hostKey returns the key of a host name of the API, such as "*.example.com".
func hostKey(hostname string) string {
	return strings.ToLower(strings.TrimPrefix(hostname, "*"))
}

// find returns the value of the most specific name: the name itself, or else the longest
// wildcard, or else what is for all names. As the Gateway API has it, a wildcard stands for
// one or several labels.
func (h hosts[T]) find(name string) (T, bool) {
	name = strings.ToLower(name)
	if len(name) > 0 && len(name) <= longestName && name[0] != '.' {
		if value, ok := h[name]; ok {
			return value, true
		}
		for i := 1; i < len(name); i++ {
			if name[i] == '.' {
				if value, ok := h[name[i:]]; ok {
					return value, true
				}
			}
		}
	}
	value, ok := h[""]
	return value, ok
}
