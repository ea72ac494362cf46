// Package damaged lets a server find its SQLite database damaged, when it starts and while it runs.
// Each time the server must end with one clear line, and a snapshot must restore the cluster.
package damaged

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/datastore/snapshot"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// The files of the database.
const (
	folder   = "/var/lib/kedge/server/db"
	database = folder + "/state.db"
	wal      = database + "-wal"
)

// pageSize is SQLite's page size in bytes.
const pageSize = 4096

// The first byte of a leaf page of a table and of an index:
// https://sqlite.org/fileformat2.html#b_tree_pages.
const (
	tableLeaf = 0x0d
	indexLeaf = 0x0a
)

const (
	// objects is the number of large ConfigMaps: more than SQLite keeps in memory.
	objects = 50
	// mostLines is how many lines the server may log, including those of a start.
	mostLines = 100
)

// lastOfStart is part of the last line that a start logs.
const lastOfStart = "to join a node"

// marker is the name of the ConfigMap whose pages are damaged.
const marker = "kept-in-the-damaged-page"

// noise is not a page of a database.
var noise = bytes.Repeat([]byte("kedge"), 4000)

// scenario is a server whose database is damaged and restored several times.
type scenario struct {
	*cluster.Cluster
	// whole has the saved files of the database, by name.
	whole map[string][]byte
}

func TestDamaged(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "sqlite3")
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	server := host.StartServer(t, "--disable-agent")
	server.WaitLog(lastOfStart)
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
		"a page in the middle": func(s *scenario) {
			s.overwrite(database, int64(len(s.whole["state.db"])/2/pageSize*pageSize), noise[:pageSize])
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.in(t)
			s.putBack()
			harm(s)
			s.wantEnd(func() { s.Server.Start() })
		})
	}
	t.Run("the log, after a crash", func(t *testing.T) {
		s := s.in(t)
		s.putBack()
		s.start()
		s.patch(marker, "1")
		s.patch("after", "1")
		s.Server.Kill9()
		content, err := os.ReadFile(host.Path(wal))
		if err != nil {
			t.Fatal(err)
		}
		s.overwrite(wal, int64(bytes.Index(content, []byte("/"+marker))), noise[:20])
		s.wantEnd(func() { s.Server.Start() })
	})
	t.Run("while it runs", func(t *testing.T) {
		s := s.in(t)
		s.putBack()
		s.start()
		// SQLite does not read pages again that it has in memory.
		if output, err := host.Command(t.Context(), "sqlite3", database, "PRAGMA wal_checkpoint(TRUNCATE)").CombinedOutput(); err != nil {
			t.Fatalf("write the log into the database: %v: %s", err, output)
		}
		info, err := os.Stat(host.Path(database))
		if err != nil {
			t.Fatal(err)
		}
		for at := int64(10 * pageSize); at < info.Size(); at += int64(len(noise)) {
			s.overwrite(database, at, noise)
		}
		s.wantEnd(func() {
			for n := range objects {
				_, _ = s.TryKubectl("", "annotate", "--overwrite", "configmap", fmt.Sprint("large-", n), "changed=yes")
			}
		})
	})
	t.Run("restored", func(t *testing.T) {
		s := s.in(t)
		list := s.Kedge("snapshot", "list", "--output=json")
		var snapshots []snapshot.File
		if err := json.Unmarshal([]byte(list), &snapshots); err != nil || len(snapshots) != 1 {
			t.Fatalf("%v in %s", err, list)
		}
		s.Kedge("snapshot", "restore", snapshots[0].Name)
		s.start()
		if got := s.Kubectl("get", "configmap", marker, "--output=jsonpath={.data.text}"); got != marker {
			t.Errorf("after the restore there is %q", got)
		}
		server.Terminate()
	})
}

// Kedge runs kedge on the server's host and returns its output.
func (s *scenario) Kedge(args ...string) string {
	s.Helper()
	output, err := s.Server.Host.Kedge(s.Context(), args...).Output()
	if err != nil {
		s.Fatalf("kedge %s: %v", strings.Join(args, " "), err)
	}
	return string(output)
}

// start starts the server, and waits until it is ready.
func (s *scenario) start() {
	s.Helper()
	before := len(s.Server.Log())
	s.Server.Start()
	s.Eventually("the server to be ready", func() error {
		if said := s.Server.Log()[before:]; !strings.Contains(said, lastOfStart) {
			return fmt.Errorf("it said %s", said)
		}
		return nil
	})
}

// patch changes a ConfigMap.
func (s *scenario) patch(name, value string) {
	s.Helper()
	s.Kubectl("patch", "configmap", name, "--patch", fmt.Sprintf(`{"data": {"changed": %q}}`, value))
}

// in returns the scenario for a subtest.
func (s *scenario) in(t *testing.T) *scenario {
	return &scenario{&cluster.Cluster{T: t, Server: s.Server, Client: s.Client}, s.whole}
}

// fill creates objects that need many pages.
func (s *scenario) fill() {
	s.Helper()
	create := func(name, text string) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": text}}
		if _, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Create(s.Context(), object, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	for _, name := range []string{"before", marker, "after"} {
		create(name, name)
	}
	for n := range objects {
		create(fmt.Sprint("large-", n), strings.Repeat("x", 100<<10))
	}
}

// save reads the files of the database into memory.
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

// putBack restores the saved database.
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

// overwritePage overwrites the page of this kind that has the marker's key.
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

// wantEnd calls do, and checks that the server then ends by itself, with status 1, a last line that
// says what is wrong and what to do, and few lines before that.
func (s *scenario) wantEnd(do func()) {
	s.Helper()
	before, began := len(s.Server.Log()), time.Now()
	do()
	status := s.Server.WaitExit(time.Minute)
	said := s.Server.Log()[before:]
	lines := strings.Split(strings.TrimSpace(said), "\n")
	last := lines[len(lines)-1]
	s.Logf("ended after %s with status %d and %d lines, the last is\n%s", time.Since(began).Round(time.Millisecond), status, len(lines), last)
	if status != 1 || len(lines) > mostLines {
		s.Errorf("the status is %d, want 1, with %d lines, want at most %d", status, len(lines), mostLines)
	}
	// The component that reads a damaged page first logs the last line.
	for _, word := range []string{"kedge: ", "is damaged", database, "`kedge snapshot restore NAME`"} {
		if !strings.Contains(last, word) {
			s.Errorf("no %q in the last line", word)
		}
	}
	if s.Failed() {
		s.Logf("the log:\n%s", said[:min(len(said), 20000)])
	}
}
