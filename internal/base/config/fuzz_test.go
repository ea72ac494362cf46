package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// FuzzLoad reads anything as a configuration file. What is accepted can be written
// down and read again, and what is refused is refused without telling a secret.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal("no files", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{
		"token: a-long-secret\nnode-name: [a, b]\n",
		"datastore-endpoint: mysql://me:a-long-secret@tcp(host)/db\nhttps-listen-port: x\n",
		"s3-secret-key: {a-long-secret: x}\n",
		"tls-san+: a,b\ntls-san: [c]\n",
		"node-label: [a=b]\nkubelet-arg: [\"a=b,c\"]\nlog-level: scheduler=\n",
		"cluster-cidr: 10.0.0.0/16,fd00::/56\nservice-cidr: 10.1.0.0/16,fd01::/112\ncluster-dns: 10.1.0.10\n",
		"a: &a [*a]\n",
	} {
		f.Add([]byte(text))
	}
	file := filepath.Join(f.TempDir(), "config.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		c, sources, err := loadText(t, file, string(text))
		if err != nil {
			for _, secret := range c.SecretTexts() {
				if len(secret) <= 8 || strings.Count(string(text), secret) != 1 || !strings.Contains(err.Error(), secret) {
					continue
				}
				// It may also be a part of an example that the message gives.
				_, _, other := loadText(t, file, strings.Replace(string(text), secret, strings.Repeat("x", len(secret)), 1))
				if other == nil || !strings.Contains(other.Error(), secret) {
					t.Errorf("%q is told by %v", secret, err)
				}
			}
			return
		}
		settings := map[string]any{}
		for _, field := range c.Fields() {
			if sources[field.Key] != "" {
				settings[field.Key] = field.value.Interface()
			}
		}
		written, err := yaml.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, written, 0o600); err != nil {
			t.Fatal(err)
		}
		again := Default()
		if err := again.loadFile(file, Sources{}); err != nil {
			t.Fatalf("%s is refused: %v", written, err)
		}
		for i, field := range again.Fields() {
			if was := c.Fields()[i]; field.String() != was.String() {
				t.Errorf("%s is %q, and %q when it is read again", field.Key, was, field)
			}
		}
		if err := again.Validate(); err != nil {
			t.Errorf("%s is refused: %v", written, err)
		}
		for _, setting := range c.Settings(sources, ServerRole) {
			if setting.Value == nil || reflect.ValueOf(setting.Value).Kind() == reflect.Pointer {
				t.Errorf("%s is shown as %v", setting.Key, setting.Value)
			}
		}
	})
}

// loadText reads text as a configuration file and checks it.
func loadText(t *testing.T, file, text string) (*Config, Sources, error) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, sources := Default(), Sources{}
	err := c.loadFile(file, sources)
	if err == nil {
		err = c.Validate()
	}
	return c, sources, err
}
