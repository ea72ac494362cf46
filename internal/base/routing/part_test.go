package routing

import (
	"maps"
	"slices"
	"testing"
)

// TestPart has two sockets that lead to different things, and one thing of both.
func TestPart(t *testing.T) {
	rule := func(backend, ofTarget, mirror string) Rule {
		return Rule{
			Filters: []Filter{{Mirror: &Mirror{Backend: mirror}}},
			Split:   Split{Targets: []Target{{Backend: backend, Filters: []Filter{{Mirror: &Mirror{Backend: ofTarget}}}}}},
		}
	}
	whole := &State{
		Sockets: map[string]*Socket{
			"one": {Listeners: []Listener{
				{Certificates: []string{"shown", "none"}, Routes: []string{"http", "gone"}},
				{ChallengeCertificates: map[string]string{"a.example": "challenge"}, Routes: []string{"both"}},
			}},
			"two": {Listeners: []Listener{{Certificates: []string{"other"}, Routes: []string{"stream", "both"}}}},
		},
		Routes: map[string]*Route{
			"http":   {Rules: []Rule{rule("target", "of-target", "mirror")}},
			"stream": {Stream: &Split{Targets: []Target{{Backend: "streamed"}, {Backend: "unknown"}}}},
			"both":   {Rules: []Rule{rule("shared", "", "")}}, "nobody's": {Rules: []Rule{rule("unreached", "", "")}},
		},
		Backends: map[string]*Backend{
			"target": {TLS: &BackendTLS{ClientCertificate: "client"}}, "of-target": {}, "mirror": {TLS: &BackendTLS{}},
			"streamed": {}, "shared": {}, "unreached": {TLS: &BackendTLS{ClientCertificate: "unreached"}},
		},
		Certificates: map[string]*Certificate{"shown": {}, "challenge": {}, "other": {}, "client": {}, "unreached": {}},
	}
	for _, test := range []struct {
		sockets, routes, backends, certificates []string
	}{
		{},
		{[]string{"one"}, []string{"both", "http"}, []string{"mirror", "of-target", "shared", "target"}, []string{"challenge", "client", "shown"}},
		{[]string{"two"}, []string{"both", "stream"}, []string{"shared", "streamed"}, []string{"other"}},
		{
			[]string{"one", "two"}, []string{"both", "http", "stream"}, []string{"mirror", "of-target", "shared", "streamed", "target"},
			[]string{"challenge", "client", "other", "shown"},
		},
	} {
		got := whole.Part(func(name string) bool { return slices.Contains(test.sockets, name) })
		for kind, names := range map[string][2][]string{
			"sockets":      {slices.Sorted(maps.Keys(got.Sockets)), test.sockets},
			"routes":       {slices.Sorted(maps.Keys(got.Routes)), test.routes},
			"backends":     {slices.Sorted(maps.Keys(got.Backends)), test.backends},
			"certificates": {slices.Sorted(maps.Keys(got.Certificates)), test.certificates},
		} {
			if !slices.Equal(names[0], names[1]) {
				t.Errorf("of sockets %v: got %s %q, want %q", test.sockets, kind, names[0], names[1])
			}
		}
		if got.Backends["target"] != nil && got.Backends["target"] != whole.Backends["target"] {
			t.Error("a value is not shared")
		}
	}
}
