package registry

import (
	"net/netip"
	"strings"
	"testing"
)

var keeper = netip.MustParseAddrPort("198.18.3.1:5000")

func TestMirror(t *testing.T) {
	const entry = "    \"localhost:32000\":\n        endpoint:\n            - http://198.18.3.1:5000\n"
	for _, test := range []struct{ name, file, want, err string }{
		{"no file", "", "mirrors:\n" + entry, ""},
		{"comments only", "# nothing\n", "mirrors:\n" + entry, ""},
		{"null", "null\n", "mirrors:\n" + entry, ""},
		{"other sections", "configs:\n    a.test:\n        tls: {insecure_skip_verify: true}\n", "configs:\n    a.test:\n        tls: {insecure_skip_verify: true}\nmirrors:\n" + entry, ""},
		{"other mirrors", "mirrors:\n    # ours\n    \"*\":\n        endpoint: [b.test]\n", "mirrors:\n    # ours\n    \"*\":\n        endpoint: [b.test]\n" + entry, ""},
		{"flow style", "mirrors: {a.test: {}}\n", "mirrors:\n    a.test: {}\n" + entry, ""},
		{"empty mirrors", "mirrors:\nconfigs: {}\n", "mirrors:\n" + entry + "configs: {}\n", ""},
		{"value left out", "configs:\n    a.test:\n", "configs:\n    a.test: null\nmirrors:\n" + entry, ""},
		{"same mirror", "mirrors:\n    localhost:32000: {}\n", "", "registries.yaml has a mirror localhost:32000 in line 2: remove it"},
		{"no mapping", "[]", "", "registries.yaml is not a mapping"},
		{"mirrors are a list", "mirrors: []", "", "mirrors in line 1 of registries.yaml is not a mapping"},
		{"broken", "mirrors: [", "", "read registries.yaml: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Mirror([]byte(test.file), 32000, keeper)
			if string(got) != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %s, %v; want %s, %s", got, err, test.want, test.err)
			}
		})
	}
}
