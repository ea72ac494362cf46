// Package apistorage runs upstream's own tests of the API server's storage on each datastore of kedge. README.md says how.
package apistorage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/apistorage/datastores"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// module is the module whose tests run, and packages are those of its packages that test the storage.
const module = "k8s.io/apiserver"

var packages = []string{"etcd3", "cacher"}

// onlyVariable names the one datastore that is tested. Without it, all are.
const onlyVariable = "ONLY"

func TestStorage(t *testing.T) {
	harness.Require(t)
	folder := copyModule(t)
	programs := map[string]string{}
	for _, p := range packages {
		programs[p] = build(t, folder, p)
	}
	var all []results
	for _, d := range []struct {
		name string
		// start returns the host where the tests run, and the variables that they need.
		start func(*testing.T) (*harness.Host, []string)
	}{
		{"SQLite", alone("SQLite")},
		{"etcd", alone("etcd")},
		{"PostgreSQL", shared(store.NewPostgreSQL)},
		{"MariaDB", shared(store.NewMariaDB)},
	} {
		if only := os.Getenv(onlyVariable); only != "" && only != d.name {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			host, variables := d.start(t)
			for _, p := range packages {
				t.Run(p, func(t *testing.T) {
					r := run(t, host, variables, programs[p], filepath.Join(folder, "pkg/storage", p), d.name)
					r.datastore, r.pkg = d.name, p
					r.judge(t)
					all = append(all, r)
				})
			}
		})
	}
	writePage(t, all)
}

// copyModule returns a copy of upstream's module in which package testserver is ours. The go command accepts no other file in
// the place of one in its cache.
func copyModule(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "module")
	original := strings.TrimSpace(command(t, "go", "list", "-m", "-f", "{{.Dir}}", module))
	if err := os.CopyFS(folder, os.DirFS(original)); err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile("testserver/testserver.go")
	if err != nil {
		t.Fatal(err)
	}
	//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/testserver/test_server.go RunEtcd NewTestConfig
	theirs := filepath.Join(folder, "pkg/storage/etcd3/testserver/test_server.go")
	if err := errors.Join(os.Chmod(theirs, 0o644), os.WriteFile(theirs, ours, 0o644)); err != nil {
		t.Fatal(err)
	}
	return folder
}

// build returns the program of the tests of a package.
func build(t *testing.T, folder, name string) string {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "go.mod")
	for _, ending := range []string{"mod", "sum"} {
		text, err := os.ReadFile(filepath.Join(repository, "go."+ending))
		if err == nil {
			err = os.WriteFile(strings.TrimSuffix(file, "mod")+ending, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	command(t, "go", "mod", "edit", "-replace="+module+"="+folder, file)
	program := filepath.Join(t.TempDir(), name)
	command(t, "go", "test", "-modfile="+file, "-c", "-o", program, module+"/pkg/storage/"+name)
	return program
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	var said bytes.Buffer
	c := exec.Command(name, args...)
	c.Stderr = &said
	output, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said.String())
	}
	return string(output)
}

// alone starts a datastore that needs nothing on its host.
func alone(kind string) func(*testing.T) (*harness.Host, []string) {
	return func(t *testing.T) (*harness.Host, []string) {
		return harness.NewNetwork(t).NewHost(t, "tests"), []string{datastores.KindVariable + "=" + kind}
	}
}

// shared starts a database.
func shared(database func(*testing.T, *harness.Network) *store.Store) func(*testing.T) (*harness.Host, []string) {
	return func(t *testing.T) (*harness.Host, []string) {
		s := database(t, harness.NewNetwork(t))
		s.Files(s.Host)
		s.Start()
		return s.Host, []string{
			datastores.KindVariable + "=SQL", datastores.EndpointVariable + "=" + s.Endpoint, datastores.FilesVariable + "=" + "/etc/kedge/store",
		}
	}
}

// fewest is fewer tests than either package has.
const fewest = 100

// passes are the arguments of each run. With one test at a time, some of upstream's tests fail, with upstream's etcd too.
func passes(datastore string) [][]string {
	const together = "-test.parallel=4"
	if datastore != "etcd" {
		return [][]string{{together}}
	}
	// kedge's etcd has fixed ports. The parts of one test have one each at the same time, so they run alone.
	all := [][]string{{together, "-test.skip=^TestLists$"}}
	for _, snapshots := range []string{"true", "false"} {
		for _, part := range []string{"List", "ConsistentList", "GetListNonRecursive"} {
			all = append(all, []string{together, "-test.run=^TestLists$/^ListFromCacheSnapshot=" + snapshots + "$/^" + part + "$"})
		}
	}
	return all
}

// run runs the tests of a package on a host.
func run(t *testing.T, host *harness.Host, variables []string, program, folder, datastore string) results {
	t.Helper()
	var output []byte
	for _, arguments := range passes(datastore) {
		arguments = append(arguments, "-test.v=test2json", "-test.timeout=30m")
		c := host.Command(t.Context(), "env", append(append(slices.Clone(variables), program), arguments...)...)
		c.Dir = folder
		said, _ := c.CombinedOutput() // it fails if a test fails
		output = append(output, said...)
	}
	translate := exec.Command("go", "tool", "test2json")
	translate.Stdin = bytes.NewReader(output)
	events, err := translate.Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the output:\n%s", output)
		}
	})
	r := results{ended: map[string]string{}}
	for decoder := json.NewDecoder(bytes.NewReader(events)); ; {
		var event struct{ Action, Test string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch {
		case event.Test == "":
		case event.Action == "run":
			r.ended[event.Test] = fail // unless it says otherwise
		case slices.Contains([]string{pass, fail, skip}, event.Action):
			r.ended[event.Test] = event.Action
		}
	}
	if len(r.ended) < fewest {
		t.Fatalf("%d tests ran, want at least %d", len(r.ended), fewest)
	}
	return r
}
