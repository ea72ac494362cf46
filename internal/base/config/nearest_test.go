package config

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	var keys []string
	for _, f := range Default().Fields() {
		keys = append(keys, f.Key)
	}
	for word, want := range map[string]string{
		"https-listen-prt":                "https-listen-port",
		"data-dri":                        "data-dir",
		"node_name":                       "node-name",
		"Node-Name":                       "node-name",
		"tokn":                            "token",
		"disable-network-policy":          "",
		"disable-etc":                     "",
		"disabel":                         "",
		"cluster-rest":                    "",
		"s3-skip-ssl-verfy":               "",
		"secrets-encryption-provider":     "",
		"kube-cloud-controller-arg":       "",
		"x":                               "",
		"":                                "",
		"prefer-bundled-bin":              "",
		"system-default-registry":         "",
		"embedded-registy":                "embedded-registry",
		"datastore-endpoint-with-a-tail!": "",
	} {
		if got := Nearest(word, keys); got != want {
			t.Errorf("%s: got %q, want %q", word, got, want)
		}
	}
}

// TestUnknownKeys has the hint in the message about a file.
func TestUnknownKeys(t *testing.T) {
	c := Default()
	_, err := c.field("disable-cloud-controllers")
	if err == nil || strings.Contains(err.Error(), "did you mean") || !strings.Contains(err.Error(), "kedge server --help") {
		t.Errorf("got %v", err)
	}
	if _, err := c.field("data-dr"); err == nil || !strings.Contains(err.Error(), "did you mean data-dir?") {
		t.Errorf("got %v", err)
	}
}
