package nodestream

import (
	"bytes"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/netpolicy"
	"github.com/kedge-dev/kedge/internal/base/routing"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// FuzzPolicies decodes anything that a server may send. If the decoder accepts an update, its
// names are safe in nftables. The update is the same when it is sent again.
func FuzzPolicies(f *testing.F) {
	f.Add([]byte(`{"whole":true,"active":true,"sets":{"s1":{"add":["10.42.0.1","fd00::1"]}},"groups":{"g1":{"policies":["a/b"],"rules":[{"policy":"a/b","sets":["s1"],"blocks":[{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}],"ports":[{"protocol":6,"first":80,"last":90}]}]}},"pods":{"a/b":{"uid":"1","ingress":"g1"}}}` + "\n" + `{"active":true,"sets":{"s1":null},"groups":{"g1":null},"pods":{"a/b":null}}` + "\n"))
	f.Add([]byte(`{"whole":true,"sets":{"s1":{"add":["fe80::1%eth0","","::ffff:1.2.3.4"]}}}` + "\n"))
	f.Add([]byte(`{"whole":true,"sets":{"a; flush ruleset":{}}}` + "\n"))
	f.Add([]byte(`{"whole":true,"groups":{"g":{"policies":["a/b\n"],"rules":[{"policy":"","ports":[{"first":2,"last":1}]}]}}}` + "\n"))
	f.Add([]byte(`{"active":true}` + "\n"))
	f.Add([]byte("{}\n\n\nnull\n"))
	safe := regexp.MustCompile(`^[a-zA-Z0-9./_-]*$`)
	f.Fuzz(func(t *testing.T, text []byte) {
		d := Policies().NewDecoder(bytes.NewReader(text))
		d.limit = 1 << 20
		for first := true; ; first = false {
			update, err := d.Next()
			if err != nil {
				if !reflect.DeepEqual(update, netpolicy.Update{}) {
					t.Errorf("%q is refused, and is %v", text, update)
				}
				return
			}
			if first && !update.Whole {
				t.Errorf("%q begins without everything", text)
			}
			names := names(update)
			for _, name := range names {
				if !safe.MatchString(name) || strings.HasPrefix(name, "-") {
					t.Errorf("%q has the name %q", text, name)
				}
			}
			var again bytes.Buffer
			if err := Encode(&again, update); err != nil {
				t.Fatal(err)
			}
			second := Policies().NewDecoder(&again)
			second.begun = true
			if got, err := second.Next(); err != nil || got.Whole != update.Whole || got.Active != update.Active || len(got.Pods) != len(update.Pods) {
				t.Errorf("%v is %v when it is sent again: %v", update, got, err)
			}
		}
	})
}

// FuzzRoutes decodes anything that a server may send. If the decoder accepts an update, the
// update leads to the same state when it is sent again.
func FuzzRoutes(f *testing.F) {
	f.Add([]byte(`{"whole":true,"sockets":{"s":{"transport":"tcp","port":30080,"publicPort":80,"listeners":[{"name":"a/b/c","protocol":"http","routes":["HTTPRoute/a/b"]}]}},"routes":{"HTTPRoute/a/b":{"name":"HTTPRoute/a/b","created":"2026-01-01T00:00:00Z","rules":[{"matches":[{"pathType":"prefix","path":"/"}],"targets":[{"backend":"a/b:80","weight":1}]}]}},"backends":{"a/b:80":{"name":"a/b:80","endpoints":["10.42.0.1:80","[fd00::1]:80"]}}}` + "\n" + `{"routes":{"HTTPRoute/a/b":null}}` + "\n{}\n"))
	f.Add([]byte(`{"whole":true,"routes":{"r":{"name":"r","rules":[{"matches":[{"pathType":"regexp","path":"((a{100}){10}){21}"}],"filters":[{"requestHeaders":{"set":[{"name":"a","value":"b\r\nc"}]}}],"targets":[]}]}}}` + "\n"))
	f.Add([]byte(`{"whole":true,"certificates":{"a":{"chain":"x","key":"y"},"b":null}}` + "\n" + `{"whole":true}` + "\n"))
	f.Add([]byte(`{"routes":{}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := Routes().NewDecoder(bytes.NewReader(text))
		d.limit = 1 << 20
		var state, resent *routing.State
		for first := true; ; first = false {
			update, err := d.Next()
			if err != nil {
				if !reflect.DeepEqual(update, routing.Update{}) {
					t.Errorf("%q is refused, and is %v", text, update)
				}
				return
			}
			if first && !update.Whole {
				t.Errorf("%q begins without everything", text)
			}
			state = state.With(update)
			var again bytes.Buffer
			if err := Encode(&again, update); err != nil {
				t.Fatal(err)
			}
			if bytes.Count(again.Bytes(), []byte("\n")) != 1 {
				t.Errorf("%q has several lines", again.String())
			}
			second := Routes().NewDecoder(&again)
			second.begun = true
			got, err := second.Next()
			if err != nil {
				t.Fatalf("%v is refused when it is sent again: %v", update, err)
			}
			resent = resent.With(got)
			if a, b := lineOf(t, state), lineOf(t, resent); a != b {
				t.Errorf("%s is %s when it is sent again", a, b)
			}
		}
	})
}

// FuzzOrders decodes anything that a server may send. If the decoder accepts an order, its digest
// can be a part of a path.
func FuzzOrders(f *testing.F) {
	f.Add([]byte(`{"id":"1","version":"v1.37.3+kedge.1","sha256":"` + strings.Repeat("0a", 32) + `","size":9}` + "\n{}\n"))
	f.Add([]byte(`{"id":"1","version":"v1/..","sha256":"../x","size":-1}` + "\n"))
	f.Add([]byte("{}\n\nnull\n"))
	digest := regexp.MustCompile(`^[0-9a-f]{64}$`)
	f.Fuzz(func(t *testing.T, text []byte) {
		d := Orders().NewDecoder(bytes.NewReader(text))
		d.limit = 1 << 20
		for {
			order, err := d.Next()
			if err != nil {
				return
			}
			if order != (upgrades.Order{}) && (!digest.MatchString(order.SHA256) || order.ID == "" || order.Size <= 0 || strings.Contains(order.Version, "/")) {
				t.Errorf("%q has the order %v", text, order)
			}
		}
	})
}

// lineOf returns a state as a server would send it.
func lineOf(t *testing.T, state *routing.State) string {
	t.Helper()
	var line strings.Builder
	if err := Encode(&line, routing.Diff(nil, state)); err != nil {
		t.Fatal(err)
	}
	return line.String()
}

// names returns all names of an update that could get into rules.
func names(u netpolicy.Update) (all []string) {
	for name := range u.Sets {
		all = append(all, name)
	}
	for name, g := range u.Groups {
		all = append(all, name)
		if g == nil {
			continue
		}
		all = append(all, g.Policies...)
		for _, r := range g.Rules {
			all = append(append(all, r.Policy), r.Sets...)
		}
	}
	for name, p := range u.Pods {
		all = append(all, name)
		if p != nil {
			all = append(all, p.UID, p.Ingress, p.Egress)
		}
	}
	return all
}
