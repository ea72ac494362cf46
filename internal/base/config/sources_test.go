package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestSources(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	token := filepath.Join(dir, "token")
	dropIn := filepath.Join(path+".d", "10-more.yaml")
	for file, text := range map[string]string{
		path:   "# names\n\ntls-san: one.example\nresolv-conf: /file\ntoken-file: " + token + "\n",
		dropIn: "tls-san+: two.example\nnode-label+: a=b\n",
		token:  "secret\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KEDGE_RESOLV_CONF", "/env")
	c, sources, err := LoadSources(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Sources{
		"tls-san":     path + ":3, " + dropIn + ":1",
		"node-label":  dropIn + ":2",
		"resolv-conf": "$KEDGE_RESOLV_CONF",
		"token-file":  path + ":5",
		"token":       token,
	}
	if !reflect.DeepEqual(sources, want) {
		t.Errorf("got %v, want %v", sources, want)
	}
	if err := os.WriteFile(dropIn, []byte("v: many\ndebug: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if half, _, err := LoadSources(path); err == nil || !half.Log.Debug || half.Node.ResolvConf != "/env" {
		t.Errorf("load a file with a fault: got %v, %+v, want an error and the settings without it", err, half)
	}
	servers, agents := c.Settings(sources, ServerRole), c.Settings(sources, AgentRole)
	for _, setting := range []Setting{
		{"tls-san", []string{"one.example", "two.example"}, want["tls-san"]},
		{"https-listen-port", 6443, "default"},
		{"token", Hidden, token},
		{"agent-token", "", "default"},
		{"node-label", []string{"a=b"}, want["node-label"]},
	} {
		if !slices.ContainsFunc(servers, func(s Setting) bool { return reflect.DeepEqual(s, setting) }) {
			t.Errorf("no %+v in %+v", setting, servers)
		}
	}
	if slices.ContainsFunc(agents, func(s Setting) bool { return s.Key == "tls-san" }) {
		t.Error("agents have tls-san")
	}
}

// TestHidden says every secret of a Config, and finds none in what is shown.
func TestHidden(t *testing.T) {
	for endpoint, want := range map[string]string{
		"":                                    "",
		"https://192.0.2.1:2379":              "https://192.0.2.1:2379",
		"postgres://kedge@db/kedge":           "postgres://kedge@db/kedge",
		"postgres://kedge:SECRET@db/kedge":    "postgres://kedge:" + Hidden + "@db/kedge",
		"postgres://db/kedge?Password=SECRET": Hidden,
		"mysql://kedge:SEC:R@ET@tcp(db:1)/k":  "mysql://kedge:" + Hidden + "@tcp(db:1)/k",
	} {
		if got := hidePassword(endpoint); got != want {
			t.Errorf("%s: got %s, want %s", endpoint, got, want)
		}
	}
	c := Default()
	for _, f := range c.Fields() {
		switch {
		case f.url:
			_ = f.Set("postgres://kedge:SECRET%40" + f.Key + "@db/kedge")
		case f.Secret:
			_ = f.Set("SECRET-" + f.Key)
		case !f.IsBool() && (strings.HasSuffix(f.Key, "-key") || strings.HasSuffix(f.Key, "token")):
			t.Errorf("%s is not secret", f.Key)
		}
	}
	for _, s := range c.Settings(nil, ServerRole) {
		if text, _ := s.Value.(string); strings.Contains(text, "SECRET") {
			t.Errorf("%+v is shown", s)
		}
	}
	for endpoint, want := range map[string][]string{
		"https://192.0.2.1:2379": nil,
		"postgres://kedge:A@db/k?sslmode=require&sslPassword=B&password=C": {"B", "C", "A"},
		"mysql://kedge:SEC?:R@ET@tcp(db:1)/k":                              {"SEC?:R@ET"},
	} {
		if got := passwords(endpoint); !slices.Equal(got, want) {
			t.Errorf("of %s: got %q, want %q", endpoint, got, want)
		}
	}
	if texts := c.SecretTexts(); !slices.Contains(texts, "SECRET-token") || !slices.Contains(texts, "SECRET%40datastore-endpoint") || !slices.Contains(texts, "SECRET@datastore-endpoint") {
		t.Errorf("the secrets are %q", texts)
	}
}
