package hosts

import (
	"iter"
	"strings"
)

// Table has values by host names of the API: exact names, names with "*." in front, and the
// empty name, which fits all. Its zero value is empty.
type Table[T any] struct {
	exact map[string]T
	// wildcard is by what comes after the star: ".example.com".
	wildcard map[string]T
	others   T
	// hasOthers tells whether the empty name is there.
	hasOthers bool
}

// Entry returns the value of a host name of the API. For a new name it stores what create
// returns.
func (t *Table[T]) Entry(hostname string, create func() T) T {
	index, key := t.index(hostname)
	if index == nil {
		if !t.hasOthers {
			t.others, t.hasOthers = create(), true
		}
		return t.others
	}
	found, is := (*index)[key]
	if !is {
		found = create()
		t.Set(hostname, found)
	}
	return found
}

// Set stores the value of a host name of the API.
func (t *Table[T]) Set(hostname string, value T) {
	index, key := t.index(hostname)
	if index == nil {
		t.others, t.hasOthers = value, true
		return
	}
	if *index == nil {
		*index = map[string]T{}
	}
	(*index)[key] = value
}

// index returns the map of a host name of the API, and its key there. The map is nil for the
// empty name.
func (t *Table[T]) index(hostname string) (*map[string]T, string) {
	hostname = strings.ToLower(hostname)
	if rest, is := strings.CutPrefix(hostname, "*"); is {
		return &t.wildcard, rest
	}
	if hostname == "" {
		return nil, ""
	}
	return &t.exact, hostname
}

// All yields the values of all host names, in no order.
func (t *Table[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, index := range []map[string]T{t.exact, t.wildcard} {
			for _, value := range index {
				if !yield(value) {
					return
				}
			}
		}
		if t.hasOthers {
			yield(t.others)
		}
	}
}

// Fitting yields what fits a name: first the value of the name itself, then those of the
// wildcards, the longest first, and then that of the empty name. A wildcard stands for one
// label or several, as the Gateway API has it.
func (t *Table[T]) Fitting(name Name) iter.Seq[T] {
	return func(yield func(T) bool) {
		host := name.text
		if found, is := t.exact[host]; is && !yield(found) {
			return
		}
		if len(t.wildcard) > 0 {
			for i := 1; i < len(host); i++ {
				if host[i] != '.' {
					continue
				}
				if found, is := t.wildcard[host[i:]]; is && !yield(found) {
					return
				}
			}
		}
		if t.hasOthers {
			yield(t.others)
		}
	}
}

// Best returns what fits a name best, or false if nothing does.
func (t *Table[T]) Best(name Name) (T, bool) {
	for found := range t.Fitting(name) {
		return found, true
	}
	var none T
	return none, false
}
