package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
)

func TestPrintEncryption(t *testing.T) {
	for name, test := range map[string]struct {
		status encryption.Status
		want   []string
	}{
		"at rest": {encryption.Status{
			Encrypted: true, Keys: []encryption.Key{{Name: "2026-01-02-abcd", Writes: true, Secrets: 34}},
			Servers: []encryption.Server{{Address: "192.0.2.1", Knows: true, Enabled: true}},
		}, []string{"Encryption: on", "Stage: at rest", "2026-01-02-abcd 34 reading, writing", "192.0.2.1 true"}},
		"being turned on": {encryption.Status{
			Plain: 12, Waiting: "the server at 192.0.2.2 is to be updated",
			Servers: []encryption.Server{{Address: "192.0.2.2"}},
		}, []string{"Encryption: off", "Stage: at rest; waiting: the server at 192.0.2.2", "Not encrypted: 12 Secrets", "192.0.2.2 unknown: it runs an older kedge"}},
		"rotated": {encryption.Status{
			Encrypted: true, Pending: true, Lost: 1, Keys: []encryption.Key{{Name: "new", Writes: true}, {Name: "old", Secrets: 3}},
		}, []string{"Stage: rewriting all Secrets", "Not readable: 1 Secrets", "new 0 reading, writing", "old 3 reading"}},
		"the user's own": {encryption.Status{Theirs: "there is an argument"}, []string{"Encryption: not by kedge: there is an argument"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := printEncryption(&out, test.status); err != nil {
				t.Fatal(err)
			}
			text := strings.Join(strings.Fields(out.String()), " ")
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
		})
	}
}

// TestK3sCommands has the names of commands that k3s's users type.
func TestK3sCommands(t *testing.T) {
	for words, want := range map[string]string{
		"secrets-encrypt prepare": "nothing to prepare", "secrets-encrypt enable": "Set secrets-encryption: true", "secrets-encrypt disable": "Set secrets-encryption: false",
	} {
		if _, err := run(t, strings.Fields(words)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", words, err)
		}
	}
	for _, words := range []string{"etcd-snapshot --help", "secrets-encrypt rotate-keys --help", "secrets-encrypt reencrypt --force --skip --help"} {
		if _, err := run(t, strings.Fields(words)...); err != nil {
			t.Errorf("%s: %v", words, err)
		}
	}
	if out, err := run(t, "token", "generate"); err != nil || !join.IsBootstrapSecret(strings.TrimSpace(out)) {
		t.Errorf("token generate: %q, %v", out, err)
	}
}
