// Package damaged has a server find its SQLite database damaged: when it starts, and
// while it runs. Every time the server ends with one clear line, and a snapshot
// brings the cluster back.
package damaged

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// The files of the database.
const (
	folder   = "/var/lib/kedge/server/db"
	database = folder + "/state.db"
)

// pageSize is SQLite's, in bytes.
const pageSize = 4096

// The first byte of a page of a table, or of an index, that has no pages below it:
// https://sqlite.org/fileformat2.html#b_tree_pages.
const (
	tableLeaf = 0x0d
	indexLeaf = 0x0a
)

// marker is the name of the ConfigMap whose pages are damaged.
const marker = "kept-in-the-damaged-page"

// noise is no page of a database.
var noise = bytes.Repeat([]byte("kedge"), 4000)

// scenario is a server whose database is damaged, and put back, again and again.
type scenario struct {
	*cluster.Cluster
	// whole are the files of the database as they were saved, by their names.
	whole map[string][]byte
}

func TestDamaged(t *testing.T) {
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	server := host.StartServer(t, "--disable-agent")
	server.WaitLog("to join a node") // the last line of a start
	s := &scenario{Cluster: cluster.Of(t, server)}
	s.fill()
	s.MustSnapshot(host, "save", "--name=whole")
	server.Terminate()
	s.save()

	for name, harm := range map[string]func(*scenario){
		"the header":          func(s *scenario) { s.overwrite(database, 0, noise[:100]) },
		"cut off":             func(s *scenario) { s.truncate(database, int64(len(s.whole["state.db"])/2)) },
		"empty":               func(s *scenario) { s.truncate(database, 0) },
		"a page of the table": func(s *scenario) { s.overwritePage(tableLeaf) },
		"a page of the index": func(s *scenario) { s.overwritePage(indexLeaf) },
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.putBack()
			harm(s)
			before := len(s.Server.Log())
			s.Server.Start()
			s.wantEnd(before)
		})
	}
}

// in returns the scenario for a subtest.
func (s *scenario) in(t *testing.T) *scenario {
	return &scenario{&cluster.Cluster{T: t, Server: s.Server, Client: s.Client}, s.whole}
}

// fill writes objects of many pages.
func (s *scenario) fill() {
	s.Helper()
	for _, name := range []string{"before", marker, "after"} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": name}}
		if _, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Create(s.Context(), object, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
	}
}

// save remembers the files of the database.
func (s *scenario) save() {
	s.Helper()
	s.whole = map[string][]byte{}
	entries, err := os.ReadDir(s.Server.Host.Path(folder))
	if err != nil {
		s.Fatal(err)
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(s.Server.Host.Path(folder), entry.Name()))
		if err != nil {
			s.Fatal(err)
		}
		s.whole[entry.Name()] = content
		s.Logf("%s: %d bytes", entry.Name(), len(content))
	}
}

// putBack has the database be as it was saved.
func (s *scenario) putBack() {
	s.Helper()
	path := s.Server.Host.Path(folder)
	if err := os.RemoveAll(path); err != nil {
		s.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		s.Fatal(err)
	}
	for name, content := range s.whole {
		if err := os.WriteFile(filepath.Join(path, name), content, 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// overwrite writes content into a file at an offset.
func (s *scenario) overwrite(path string, offset int64, content []byte) {
	s.Helper()
	file, err := os.OpenFile(s.Server.Host.Path(path), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(content, offset)
		file.Close()
	}
	if err != nil {
		s.Fatal(err)
	}
}

func (s *scenario) truncate(path string, size int64) {
	s.Helper()
	if err := os.Truncate(s.Server.Host.Path(path), size); err != nil {
		s.Fatal(err)
	}
}

// overwritePage overwrites the page of a kind that has the key of the marker.
func (s *scenario) overwritePage(kind byte) {
	s.Helper()
	content := s.whole["state.db"]
	for at := pageSize; at < len(content); at += pageSize {
		if page := content[at : at+pageSize]; page[0] == kind && bytes.Contains(page, []byte("/"+marker)) {
			s.overwrite(database, int64(at), noise[:pageSize])
			return
		}
	}
	s.Fatalf("no page of kind %#x has %s", kind, marker)
}

// wantEnd wants the server to end soon, by itself, with status 1, and with a last
// line that says what is wrong and what to do. before is how much it had logged.
func (s *scenario) wantEnd(before int) {
	s.Helper()
	began := time.Now()
	status := s.Server.WaitExit(time.Minute)
	said := s.Server.Log()[before:]
	lines := strings.Split(strings.TrimSpace(said), "\n")
	last := lines[len(lines)-1]
	s.Logf("ended after %s with status %d and %d lines, the last is\n%s", time.Since(began).Round(time.Millisecond), status, len(lines), last)
	if status != 1 {
		s.Errorf("the status is %d, want 1", status)
	}
	for _, word := range []string{"kedge: ", "is damaged", database, "kedge snapshot restore"} {
		if !strings.Contains(last, word) {
			s.Errorf("no %q in the last line", word)
		}
	}
	if s.Failed() {
		s.Logf("all that was said:\n%s", said[:min(len(said), 6000)])
	}
}
