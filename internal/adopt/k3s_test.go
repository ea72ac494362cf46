package adopt

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"database/sql"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/k3shost"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// kineSchema is the table as k3s v1.21 makes it (github.com/k3s-io/kine,
// pkg/drivers/sqlite). The name has the affinity INTEGER there.
const kineSchema = `CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER, created INTEGER, deleted INTEGER,
	create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB);
	CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision);`

// newerKineSchema is the table as k3s v1.36 makes it.
const newerKineSchema = `CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER,
	create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB);
	CREATE INDEX kine_name_index ON kine (name);
	CREATE INDEX kine_name_id_index ON kine (name,id);
	CREATE INDEX kine_id_deleted_index ON kine (id,deleted);
	CREATE INDEX kine_prev_revision_index ON kine (prev_revision);
	CREATE UNIQUE INDEX kine_name_prev_revision_uindex ON kine (name, prev_revision);
	CREATE INDEX kine_id_compact_rev_key_with_prev_revision_index ON kine(id, name, prev_revision) WHERE name != 'compact_rev_key' AND prev_revision != 0`

// row is a row of kine's table. Its revision is its place in the list.
type row struct {
	key     string
	text    []byte
	deleted bool
}

// keySecret is the secret of each key that the tests encrypt with.
var keySecret = bytes.Repeat([]byte("k"), 32)

// aescbc and boxed encrypt as k3s does.
func aescbc(t *testing.T, key string, text []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher(keySecret)
	if err != nil {
		t.Fatal(err)
	}
	return sealed(t, aestransformer.NewCBCTransformer(block), "k8s:enc:aescbc:v1:aescbckey:", key, text)
}

func boxed(t *testing.T, key string, text []byte) []byte {
	t.Helper()
	return sealed(t, secretbox.NewSecretboxTransformer([32]byte(keySecret)), "k8s:enc:secretbox:v1:secretboxkey:", key, text)
}

func sealed(t *testing.T, transformer value.Transformer, prefix, key string, text []byte) []byte {
	t.Helper()
	out, err := transformer.TransformToStorage(t.Context(), text, value.DefaultContext(key))
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte(prefix), out...)
}

// keysFile is an encryption-config.json with a provider and its key.
func keysFile(provider string) string {
	return fmt.Sprintf(`{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[{"resources":["secrets"],`+
		`"providers":[{%q:{"keys":[{"name":"%skey","secret":%q}]}},{"identity":{}}]}]}`, provider, provider, base64.StdEncoding.EncodeToString(keySecret))
}

// stored returns an object as the API server stores it.
func stored(t *testing.T, object runtime.Object) []byte {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Fatal(err)
	}
	serializer := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	text, err := runtime.Encode(scheme.Codecs.EncoderForVersion(serializer, schema.GroupVersions{kinds[0].GroupVersion()}), object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func configMap(t *testing.T, name, data string) []byte {
	return stored(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "apps", UID: "1"}, Data: map[string]string{"a": data}})
}

// keepOldKey adds a second key to that of service accounts. k3s keeps the keys that it has
// replaced behind the one that signs, which it also puts into a file of its own.
func keepOldKey(t *testing.T, folder string) {
	t.Helper()
	first, err := os.ReadFile(filepath.Join(folder, "service.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	second := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	write(t, filepath.Join(folder, "service.key"), string(first)+string(second))
	write(t, filepath.Join(folder, "service.current.key"), string(first))
}

// newK3s makes the files of a k3s server that was killed: its database has the rows only in
// its log. It returns the root folder.
func newK3s(t *testing.T, rows []row) string {
	t.Helper()
	root := t.TempDir()
	data := datadir.Dir(filepath.Join(root, k3shost.DataFolder))
	if err := errors.Join(data.MakeServer(), data.MakeAgent()); err != nil {
		t.Fatal(err)
	}
	_, err := pki.EnsureServer(pki.ServerOptions{
		Dir: data, NodeName: "one", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ClusterDomain: "cluster.local",
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")}, Clock: pki.NewClock(data.ClockFile()), Etcd: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(data.ServerTLS(), pki.EncryptionKey)); err != nil {
		t.Fatal(err)
	}
	keepOldKey(t, data.ServerTLS())
	write(t, data.ServerToken(), "K10"+strings.Repeat("0", 64)+"::server:secret\n")
	write(t, filepath.Join(data.Manifests(), "mine.yaml"), "mine")
	write(t, filepath.Join(data.Manifests(), "coredns.yaml"), "theirs")
	write(t, filepath.Join(data.Manifests(), "metrics-server", "service.yaml"), "theirs")
	write(t, filepath.Join(data.Charts(), "a.tgz"), "chart")
	write(t, filepath.Join(data.Images(), "a.tar"), "archive")
	write(t, filepath.Join(data.Images(), ".cache.json"), "{}")
	write(t, filepath.Join(data.Manifests(), "coredns.yaml.skip"), "")
	write(t, filepath.Join(data.Manifests(), "traefik.settings.Config.yaml"), "mine")
	write(t, filepath.Join(root, k3shost.ConfigFolder, "registries.yaml"), "mirrors: {}\n")
	writeRows(t, data.SQLite(), rows)
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// writeRows makes k3s's database.
func writeRows(t *testing.T, file string, rows []row) {
	t.Helper()
	writeTable(t, file, kineSchema, rows)
}

// writeTable makes k3s's database with a table of a version of k3s.
func writeTable(t *testing.T, file, schema string, rows []row) {
	t.Helper()
	made := filepath.Join(t.TempDir(), "state.db")
	db, err := sql.Open("sqlite3", "file:"+made+"?_journal_mode=WAL")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(schema); err != nil {
		t.Fatal(err)
	}
	last, created := map[string]int{}, map[string]int{}
	for i, r := range rows {
		revision := i + 1
		fresh := last[r.key] == 0 || rows[last[r.key]-1].deleted
		if fresh {
			created[r.key] = revision
		}
		_, err := db.Exec("INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, lease, value) VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
			revision, r.key, fresh, r.deleted, created[r.key], last[r.key], r.text)
		if err != nil {
			t.Fatal(err)
		}
		last[r.key] = revision
	}
	for _, part := range []string{"", "-wal"} {
		text, err := os.ReadFile(made + part)
		if err != nil {
			t.Fatal(err)
		}
		write(t, file+part, string(text))
	}
}

// newAdoption returns an adoption of the files below root, for the tests that leave out
// what Run does before its steps.
func newAdoption(t *testing.T, root string) *adoption {
	t.Helper()
	cfg := config.Default()
	cfg.DataDir = filepath.Join(root, "kedge")
	cfg.Node.NodeName = "one"
	cfg.Node.PrivateRegistry = filepath.Join(root, "etc/kedge/registries.yaml")
	k3s, err := find(root)
	if err != nil {
		t.Fatal(err)
	}
	return &adoption{
		Config: Config{Settings: cfg, Root: root}, k3s: k3s, dir: datadir.Dir(cfg.DataDir), report: &Report{},
		node: host.Node{Name: "one", IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
	}
}

// sums returns a hash of k3s's files.
func sums(t *testing.T, root string) string {
	t.Helper()
	sum := sha256.New()
	for _, folder := range []string{"var/lib/rancher", "etc/rancher"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			fmt.Fprintln(sum, path, info.Mode(), info.ModTime())
			if entry.IsDir() {
				return nil
			}
			text, err := os.ReadFile(path)
			_, _ = sum.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// run runs an adoption and fails the test with its error.
func run(t *testing.T, a *adoption) {
	t.Helper()
	if err := a.run(context.Background()); err != nil {
		t.Fatal(err)
	}
}
