package routing

import (
	"encoding/json"
	"testing"
)

// FuzzUpdate reads two updates that somebody may send. What Check accepts is accepted again
// after it was sent on. The difference between two states leads from one to the other. All
// regular expressions compile, and texts for headers have no line feed.
func FuzzUpdate(f *testing.F) {
	all, err := json.Marshal(good())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(all, []byte(`{"routes":{"HTTPRoute/shop/web":null},"backends":{"shop/web:80":{"name":"a","endpoints":[]}}}`))
	f.Add([]byte(`{"whole":true,"sockets":{"a":{"transport":"tcp","port":1,"publicPort":2}}}`), all)
	f.Add([]byte(`{"sockets":{"a":{"transport":"tcp","port":1,"publicPort":2,"listeners":[]}}}`), []byte(`{"whole":true,"sockets":{"a":{"transport":"tcp","port":1,"publicPort":2}}}`))
	f.Add([]byte(`{"routes":{"a":{"name":"a","created":"0001-01-01T01:00:00+01:00","rules":[{"matches":[{"pathType":"regexp","path":"((a{100}){10}){21}"}],"targets":null}]}}}`), []byte(`null`))
	f.Add([]byte(`{"backends":{"a":{"name":"a","endpoints":["","[::ffff:1.2.3.4]:5","[fe80::1%eth0]:1"]}}}`), []byte(`{"whole":true,"routes":{"a":null}}`))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var old *State
		for _, encoded := range [][]byte{first, second} {
			var update Update
			if json.Unmarshal(encoded, &update) != nil || update.Check() != nil {
				return
			}
			now := old.With(update)
			for _, route := range now.Routes {
				checkWords(t, route)
			}
			difference := Diff(old, now)
			if got := old.With(difference); text(t, got) != text(t, now) {
				t.Errorf("from %s with %s comes %s, not %s", text(t, old), text(t, difference), text(t, got), text(t, now))
			}
			var sent Update
			if err := json.Unmarshal([]byte(text(t, difference)), &sent); err != nil {
				t.Fatal(err)
			}
			// The ports of two updates may be in conflict. Those of each are not.
			if err := checkAll("socket", sent.Sockets, (*Socket).Check); err != nil {
				t.Errorf("%s is refused when it is sent on: %v", text(t, difference), err)
			}
			if got := old.With(sent); text(t, got) != text(t, now) {
				t.Errorf("from %s with %s comes %s, not %s", text(t, old), text(t, sent), text(t, got), text(t, now))
			}
			if again := Diff(now, old.With(difference)); !again.IsEmpty() {
				t.Errorf("after %s there is still a difference %s", text(t, difference), text(t, again))
			}
			old = now
		}
	})
}

// checkWords wants what a node would build of a route to be possible.
func checkWords(t *testing.T, route *Route) {
	t.Helper()
	for _, rule := range route.Rules {
		for _, match := range rule.Matches {
			if match.PathType == Regexp {
				if _, err := CompileRegexp(match.Path); err != nil {
					t.Errorf("%q: %v", match.Path, err)
				}
			}
		}
		for _, filter := range rule.Filters {
			if filter.RequestHeaders == nil {
				continue
			}
			for _, header := range filter.RequestHeaders.Set {
				if !isToken(header.Name) || !isFieldValue(header.Value) {
					t.Errorf("header %q: %q", header.Name, header.Value)
				}
			}
		}
	}
}
