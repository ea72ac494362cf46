package adopt

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/k3shost"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// k3s's settings are found where its users put them.
func TestSettings(t *testing.T) {
	root := newK3s(t, nil)
	if err := os.Rename(filepath.Join(root, k3shost.DataFolder), filepath.Join(root, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if _, err := find(root); err == nil || !strings.Contains(err.Error(), "no files of a k3s server") {
		t.Errorf("got error %v", err)
	}
	write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml"), "data-dir: /nowhere\ndatastore-cafile: /ca\n")
	write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml.d/1.yaml"), "data-dir: /nowhere-else\n")
	write(t, filepath.Join(root, "etc/systemd/system/k3s.service.env"), "K3S_DATASTORE_ENDPOINT='mysql://u:p@tcp(192.0.2.1)/k3s'\nHTTP_PROXY=x\n")
	write(t, filepath.Join(root, "etc/systemd/system/k3s.service"), "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--data-dir' \\\n\t'/elsewhere' \\\n\t'--datastore-certfile=/crt' \\\n")
	k, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Datastore{Endpoint: "mysql://u:p@tcp(192.0.2.1)/k3s", CAFile: "/ca", CertFile: "/crt"}
	if got := k.settings.Config.Server.Datastore; got != want || k.data != filepath.Join(root, "elsewhere") {
		t.Errorf("got %v in %s, want %v", got, k.data, want)
	}
}

// k3s's service can be one of OpenRC, have another name, and name another configuration.
func TestService(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"letter":            {map[string]string{"etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server -d /elsewhere\n"}, "mysql://a"},
		"OpenRC":            {map[string]string{"etc/init.d/k3s": "command_args=\"server \\\n\t'--data-dir' \\\n\t'/elsewhere' \\\n    >>/var/log/k3s.log 2>&1\"\n", "etc/rancher/k3s/k3s.env": "export K3S_DATASTORE_ENDPOINT='mysql://b'\n"}, "mysql://b"},
		"another name":      {map[string]string{"etc/systemd/system/k3s-edge.service": "[Service]\nExecStart=/usr/local/bin/k3s server --data-dir=/elsewhere\n"}, "mysql://a"},
		"another file":      {map[string]string{"etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server -c /srv/k3s.yaml\n", "srv/k3s.yaml": "data-dir: /elsewhere\n", "srv/k3s.yaml.d/9.yml": "datastore-endpoint: mysql://c\n"}, "mysql://c"},
		"file of variables": {map[string]string{"etc/systemd/system/k3s.service": "[Service]\nExecStart=/usr/local/bin/k3s server\n", "etc/systemd/system/k3s.service.env": "K3S_CONFIG_FILE=/srv/k3s.yaml\n", "srv/k3s.yaml": "data-dir: /elsewhere\ndatastore-endpoint: mysql://d\n"}, "mysql://d"},
		"added values":      {map[string]string{"etc/rancher/k3s/config.yaml.d/1.yaml": "data-dir: /elsewhere\ntls-san: [a]\n", "etc/rancher/k3s/config.yaml.d/2.yaml": "tls-san+: [b]\n"}, "mysql://a"},
	} {
		t.Run(name, func(t *testing.T) {
			root := newK3s(t, nil)
			if err := os.Rename(filepath.Join(root, k3shost.DataFolder), filepath.Join(root, "elsewhere")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml"), "datastore-endpoint: mysql://a\n")
			for file, text := range test.files {
				write(t, filepath.Join(root, file), text)
			}
			k, err := find(root)
			if err != nil {
				t.Fatal(err)
			}
			if got := k.settings.Config.Server.Datastore.Endpoint; got != test.want {
				t.Errorf("the datastore is %s, want %s", got, test.want)
			}
			if sans := k.settings.Config.Server.TLSSAN; name == "added values" && strings.Join(sans, ",") != "a,b" {
				t.Errorf("tls-san is %v", sans)
			}
		})
	}
}

// Keys are also in a file of the user's. A file can have keys of two kinds, and k3s may not
// use them any more.
func TestKeys(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString(keySecret)
	const argument = "kube-apiserver-arg: [v=1, encryption-provider-config=/etc/k3s-keys.yaml]\n"
	inYAML := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - identity: {}
  - secretbox: {keys: [{name: newer, secret: %[1]s}, {name: secretboxkey, secret: %[1]s}]}
  - aescbc: {keys: [{name: aescbckey, secret: %[1]s}]}
`, secret)
	for name, test := range map[string]struct{ config, own, configured string }{
		"of the user":         {argument, "", inYAML},
		"of the user as well": {argument, keysFile("aescbc"), strings.ReplaceAll(inYAML, "aescbc", "secretbox")},
		"replaced":            {"", strings.ReplaceAll(keysFile("secretbox"), `{"identity":{}}`, `{"aescbc":{"keys":[{"name":"aescbckey","secret":"`+secret+`"}]}},{"identity":{}}`), ""},
		"off":                 {"", strings.Replace(keysFile("aescbc"), `"providers":[`, `"providers":[{"identity":{}},`, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			rows, reasons := allRows(t, aescbc)
			root := newK3s(t, nil)
			writeTable(t, filepath.Join(root, k3shost.DataFolder, "server/db/state.db"), newerKineSchema, rows)
			write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml"), test.config)
			if test.own != "" {
				write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-config.json"), test.own)
				write(t, filepath.Join(root, k3shost.DataFolder, "server/cred/encryption-state.json"), "reencrypt_finished-00")
			}
			if test.configured != "" {
				write(t, filepath.Join(root, "etc/k3s-keys.yaml"), test.configured)
			}
			a := newAdoption(t, root)
			run(t, a)
			checkContents(t, a, rows, reasons, contents(t, sqlite.New(sqlite.Config{Dir: a.dir.ServerDB()}).Export))
		})
	}
	t.Run("missing", func(t *testing.T) {
		root := newK3s(t, nil)
		write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml"), argument)
		if err := newAdoption(t, root).run(t.Context()); err == nil || !strings.Contains(err.Error(), "/etc/k3s-keys.yaml: no such file") {
			t.Errorf("got error %v", err)
		}
	})
}

// k3s's settings say where registries.yaml and volumes are. Files that stay are named.
func TestPlaces(t *testing.T) {
	root := newK3s(t, nil)
	write(t, filepath.Join(root, k3shost.ConfigFolder, "config.yaml"), "private-registry: /srv/registries.yaml\ndefault-local-storage-path: /srv/volumes\n")
	write(t, filepath.Join(root, "srv/registries.yaml"), "mirrors: {a: {endpoint: [https://b]}}\n")
	write(t, filepath.Join(root, k3shost.DataFolder, "agent/etc/kubelet.conf.d/50-mine.conf"), "")
	a := newAdoption(t, root)
	run(t, a)
	if notes := strings.Join(a.report.Notes, "\n"); !strings.Contains(notes, "50-mine.conf. Copy it to /etc/kedge/kubelet.conf.d") {
		t.Errorf("it says %s", notes)
	}
	if text, err := os.ReadFile(a.Settings.Node.PrivateRegistry); err != nil || !strings.Contains(string(text), "https://b") {
		t.Errorf("registries.yaml is %q, %v", text, err)
	}
	if next := a.report.Next(); !strings.Contains(next, "stay in "+filepath.Join(root, "srv/volumes")+", and") || strings.Contains(next, "uninstall") {
		t.Errorf("it says %s", next)
	}
}

// A configuration that cannot be read may hide where the objects are, so find stops. A key that kedge
// does not have is no reason to stop.
func TestUnreadableSettings(t *testing.T) {
	root := newK3s(t, nil)
	file := filepath.Join(root, k3shost.ConfigFolder, "config.yaml")
	write(t, file, "docker: true\nno-such-key: 1\n")
	if _, err := find(root); err != nil {
		t.Error(err)
	}
	write(t, file, "a: [\n")
	if _, err := find(root); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got error %v", err)
	}
}
