package sqldb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/datastore"
)

func TestParse(t *testing.T) {
	for endpoint, want := range map[string]string{
		"postgres://u:p@db.example/Cluster": "PostgreSQL on db.example:5432, database cluster, user u",
		"postgresql://u:p%40@192.0.2.1:99":  "PostgreSQL on 192.0.2.1:99, database kubernetes, user u",
		"mysql://u:p@tcp(db.example:99)/":   "MySQL on db.example:99, database kubernetes, user u",
		"mysql://u@unix(/run/my.sock)/":     "MySQL on /run/my.sock, database kubernetes, user u",
	} {
		got, err := parse(endpoint, datastore.TLS{})
		if err != nil || got.String() != want {
			t.Errorf("%s: %v %v, want %s", endpoint, got, err, want)
		}
	}
}

// No message contains the password.
func TestParseFaults(t *testing.T) {
	folder := t.TempDir()
	garbage := filepath.Join(folder, "garbage")
	if err := os.WriteFile(garbage, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		endpoint, want string
		files          datastore.TLS
	}{
		{"postgres://u:secret%zz@h/d", "must be written as in a URL", datastore.TLS{}},
		{"postgres://u:secret@h:port/d", "is not postgres://USER", datastore.TLS{}},
		{"postgres://u:secret@h/d?sslmode=sometimes", "is not postgres://USER", datastore.TLS{}},
		{"postgres://u:secret@h/d?sslrootcert=/none&sslmode=verify-full", "/none", datastore.TLS{}},
		{"mysql://u:secret@h:3306/d", "is not mysql://USER:PASSWORD@tcp(HOST:3306)", datastore.TLS{}},
		{"mysql://secret", "is not mysql://", datastore.TLS{}},
		{"oracle://u:secret@h/d", "begins with neither", datastore.TLS{}},
		{"postgres://u:secret@h/d", "datastore-cafile: stat /none: no such file", datastore.TLS{CAFile: "/none"}},
		{"postgres://u:secret@h/d", "has no certificate in PEM", datastore.TLS{CAFile: garbage}},
		{"mysql://u:secret@tcp(h)/d", "only one of datastore-certfile", datastore.TLS{CertFile: garbage}},
		{"mysql://u:secret@tcp(h)/d", "datastore-certfile and datastore-keyfile: ", datastore.TLS{CertFile: garbage, KeyFile: garbage}},
	} {
		_, err := parse(test.endpoint, test.files)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", test.endpoint, err, test.want)
		}
	}
}

func TestBind(t *testing.T) {
	const statement = "a = ? AND b = ?"
	if got := postgres.bind(statement); got != "a = $1 AND b = $2" {
		t.Error(got)
	}
	if got := mySQL.bind(statement); got != statement {
		t.Error(got)
	}
}
