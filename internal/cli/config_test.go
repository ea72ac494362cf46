package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

func TestConfigPrint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("token: SECRET\ntls-san: [a.example, b.example]\nnode-name: pi\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KEDGE_RESOLV_CONF", "/env")
	args := []string{"config", "print", "--config", file, "--v=3", "--node-name=flag"}
	text, err := run(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"# What a start of kedge server would use.",
		"tls-san: [a.example, b.example] # " + file + ":2",
		"node-name: flag # --node-name",
		"v: 3 # --v",
		"resolv-conf: /env # $KEDGE_RESOLV_CONF",
		"token: (hidden) # " + file + ":1",
		"https-listen-port: 6443 # default",
		"node-label: [] # default",
		`write-kubeconfig-mode: "0600" # default`,
	} {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, text)
		}
	}
	if strings.Contains(text, "SECRET") {
		t.Errorf("the token is in\n%s", text)
	}

	// What is printed is a configuration file, but for the secrets.
	printed := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(printed, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Unsetenv("KEDGE_RESOLV_CONF")
	cfg, err := config.Load(printed)
	if err != nil || cfg.Node.ResolvConf != "/env" || len(cfg.Server.TLSSAN) != 2 || cfg.Log.Verbosity != 3 {
		t.Errorf("read again: %v, %+v", err, cfg)
	}

	text, err = run(t, append(args, "--agent", "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	var settings []config.Setting
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		t.Fatal(err)
	}
	named := func(key string) func(config.Setting) bool {
		return func(s config.Setting) bool { return s.Key == key }
	}
	if slices.ContainsFunc(settings, named("tls-san")) || !slices.ContainsFunc(settings, named("node-name")) {
		t.Errorf("an agent has %+v", settings)
	}
	if _, err := run(t, append(args, "-o", "xml")...); err == nil || !strings.Contains(err.Error(), "yaml or json") {
		t.Errorf("an output that is not known: %v", err)
	}
}

// A kedge that runs tells its settings as JSON, of which numbers come as they do.
func TestSettingsYAML(t *testing.T) {
	text, err := settingsYAML("Whose.", []config.Setting{
		{Key: "https-listen-port", Value: 6443.0, Source: "default"},
		{Key: "debug", Value: true, Source: "--debug"},
		{Key: "tls-san", Value: []any{"a", "b"}, Source: "file:1"},
	})
	const want = `# Whose.
https-listen-port: 6443 # default
debug: true # --debug
tls-san: [a, b] # file:1
`
	if err != nil || strings.ReplaceAll(string(text), "\n\n", "\n") != want {
		t.Errorf("%v, got\n%s", err, text)
	}
}
