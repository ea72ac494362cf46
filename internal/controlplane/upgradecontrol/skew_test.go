package upgradecontrol

import (
	"strings"
	"testing"
)

// TestForbids has nodes as NAME:ROLE:VERSION, of which those with a star are chosen.
func TestForbids(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		nodes  string
		bares  []bare
		want   []string
	}{
		"a patch":                         {"v1.37.3+kedge.1", "*s:server:v1.37.2+kedge.9 *a:agent:v1.37.2+kedge.9", nil, nil},
		"an older patch":                  {"v1.37.1+kedge.1", "*s:server:v1.37.2+kedge.9 *a:agent:v1.37.2+kedge.9", nil, nil},
		"a minor version":                 {"v1.38.0+kedge.1", "*s:server:v1.37.2 *a:agent:v1.37.2", nil, nil},
		"two minor versions":              {"v1.39.0+kedge.1", "*s:server:v1.37.2 *a:agent:v1.37.2", nil, []string{"server s runs v1.37.2. Servers go up by one minor version at a time: upgrade to v1.38 first"}},
		"an older minor version":          {"v1.36.9+kedge.1", "*s:server:v1.37.2 *a:agent:v1.36.2", nil, []string{"node s runs v1.37.2, and no Plan brings a node to an older minor version"}},
		"another major version":           {"v2.0.0", "*s:server:v1.37.2", nil, []string{"Servers go up by one"}},
		"old agents, at the limit":        {"v1.38.0", "*s:server:v1.37.2 *a:agent:v1.35.2", nil, nil},
		"agents that are too old":         {"v1.38.0", "*s:server:v1.37.2 *a:agent:v1.34.2", nil, []string{"agent a runs v1.34.2, which is too old for servers of v1.38.0"}},
		"the same, and not chosen":        {"v1.38.0", "*s:server:v1.37.2 a:agent:v1.34.2", nil, []string{"agent a runs v1.34.2, which is too old"}},
		"agents alone, far behind":        {"v1.37.2", "s:server:v1.37.2 *a:agent:v1.34.2", nil, nil},
		"agents alone, as the servers":    {"v1.37.3", "s:server:v1.37.2 *a:agent:v1.36.2", nil, nil},
		"agents newer than a server":      {"v1.37.3", "s:server:v1.36.9 *a:agent:v1.36.2", nil, []string{"agents would be newer than server s, which runs v1.36.9: choose it, too"}},
		"one server of two":               {"v1.38.0", "*s:server:v1.37.2 t:server:v1.37.2", nil, nil},
		"one server of two, and agents":   {"v1.38.0", "*s:server:v1.37.2 t:server:v1.37.2 *a:agent:v1.37.2", nil, []string{"newer than server t"}},
		"servers that are far apart":      {"v1.38.0", "*s:server:v1.37.2 t:server:v1.36.2", nil, []string{"more than one minor version apart from server t"}},
		"a server without an API":         {"v1.38.0", "*s:server:v1.37.2 *e:etcd:v1.36.2", nil, []string{"server e runs v1.36.2. Servers go up"}},
		"no version":                      {"v1.38.0", "*s:server:v1.37.2 *a:agent:unknown", nil, []string{`node a reports the version "unknown"`}},
		"a number that is too large":      {"v1.99999.0", "*s:server:v1.37.2", nil, []string{"cannot be read"}},
		"no target":                       {"new", "*s:server:v1.37.2", nil, []string{`the version "new" cannot be read`}},
		"a server that is no node":        {"v1.38.0", "*a:agent:v1.37.2", []bare{{"192.0.2.1:6443", "v1.37.2"}}, []string{"agents would be newer than the server at 192.0.2.1:6443 that is not a node, which runs v1.37.2: upgrade it with install.sh first"}},
		"one that is upgraded":            {"v1.38.0", "*a:agent:v1.37.2", []bare{{"192.0.2.1:6443", "v1.38.0"}}, nil},
		"one that does not answer":        {"v1.38.0", "*a:agent:v1.37.2", []bare{{"192.0.2.1:6443", ""}}, nil},
		"one whose version is none":       {"v1.38.0", "*a:agent:v1.37.2", []bare{{"192.0.2.1:6443", "?"}}, []string{"192.0.2.1:6443"}},
		"several reasons, one at a time":  {"v1.36.0", "*s:server:v1.37.2 *t:server:v1.37.2", nil, []string{"node s", "node t"}},
		"nodes that are upgraded already": {"v1.38.0", "*s:server:v1.38.0 *t:server:v1.37.2 *a:agent:v1.37.0", nil, nil},
	} {
		var all, chosen []*node
		for _, text := range strings.Fields(test.nodes) {
			fields := strings.Split(strings.TrimPrefix(text, "*"), ":")
			n := &node{name: fields[0], version: fields[2], role: map[string]role{"server": server, "etcd": etcd, "agent": agent}[fields[1]]}
			if all = append(all, n); strings.HasPrefix(text, "*") {
				chosen = append(chosen, n)
			}
		}
		got := forbids(test.target, chosen, all, test.bares)
		if len(got) != len(test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
			continue
		}
		for i, want := range test.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%s: got %q, want %q", name, got[i], want)
			}
		}
	}
}

// TestGoesBack compares what a channel has with what a node runs.
func TestGoesBack(t *testing.T) {
	for name, test := range map[string]struct {
		channel, runs string
		older         bool
	}{
		"the same":                 {"v1.37.2+kedge.2", "v1.37.2+kedge.2", false},
		"newer":                    {"v1.37.3+kedge.1", "v1.37.2+kedge.2", false},
		"an older patch":           {"v1.37.1+kedge.9", "v1.37.2+kedge.2", true},
		"an older one of kedge":    {"v1.37.2+kedge.9", "v1.37.2+kedge.10", true},
		"a newer one of kedge":     {"v1.37.2+kedge.10", "v1.37.2+kedge.9", false},
		"one before the release":   {"v1.37.2-rc.1+kedge.3", "v1.37.2+kedge.2", true},
		"a node that tells no own": {"v1.37.2+kedge.1", "v1.37.2", false},
		"a node that tells none":   {"v1.37.2+kedge.1", "unknown", false},
	} {
		got := goesBack(test.channel, []*node{{name: "s", version: test.runs}})
		if (len(got) == 1) != test.older || test.older && !strings.Contains(got[0], "use spec.version (--version)") {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
