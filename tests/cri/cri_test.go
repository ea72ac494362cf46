// Package cri runs critest, the validation suite of the Container Runtime Interface (sigs.k8s.io/cri-tools), on the containerd
// that kedge embeds. README.md says how.
package cri

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/ginkgo"
	"github.com/kedge-dev/kedge/tests/harness/registry"
)

const (
	architecture = runtime.GOARCH
	patience     = time.Minute
	// registryName is where the node gets images from.
	registryName  = "mirror.test"
	authorityFile = "/etc/kedge/mirror.crt"
)

// fewest is fewer tests than critest has.
const fewest = 100

var suite harness.Suite

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == argument {
		if err := runContainerd(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(suite.Main(m))
}

// registriesYAML makes the images of all registries come from one.
const registriesYAML = `
mirrors:
  "*": {endpoint: ["https://%[1]s:5000"]}
configs:
  "%[1]s:5000":
    auth: {username: reader, password: first}
    tls: {ca_file: %[2]s}
`

// TestCRI runs critest. FOCUS selects tests by their names.
func TestCRI(t *testing.T) {
	harness.Require(t)
	program := buildCritest(t)
	network := harness.NewNetwork(t)
	images := registry.Start(t, network, registryName)
	fillRegistry(t, images)
	host := network.NewHost(t, "server-1")
	host.WriteFile("/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", images.Host.Address, registryName))
	host.WriteFile(authorityFile, string(images.Authority))
	host.WriteFile(registriesFile, fmt.Sprintf(registriesYAML, registryName, authorityFile))
	// The first start prepares the host, and the network of pods.
	server := host.StartServer(t)
	server.WaitReady()
	server.Terminate()
	startContainerd(t, host)

	report := filepath.Join(t.TempDir(), "report.json")
	arguments := []string{"-runtime-endpoint=unix://" + datadir.ContainerdSocket, "-ginkgo.no-color", "-ginkgo.json-report=" + report}
	if focus := os.Getenv("FOCUS"); focus != "" {
		arguments = append(arguments, "-ginkgo.focus="+focus)
	}
	output, err := host.Command(t.Context(), program, arguments...).CombinedOutput()
	outcomes, failed := ginkgo.Read(report)
	if failed != nil {
		t.Fatalf("%v: critest ended with %v:\n%s", failed, err, output)
	}
	judge(t, outcomes)
	writePage(t, outcomes)
	if t.Failed() {
		t.Logf("the output of critest:\n%s", output)
	}
}

// buildCritest returns the program. It is a test of the module of crictl.
func buildCritest(t *testing.T) string {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "critest")
	build := exec.Command("go", "test", "-c", "-o", program, "sigs.k8s.io/cri-tools/cmd/critest")
	build.Dir = filepath.Join(repository, "cmd/helpers")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false -trimpath -tags=netgo,osusergo,grpcnotrace")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build critest: %v\n%s", err, output)
	}
	return program
}

// startContainerd starts this program on the host, and waits until the CRI answers.
func startContainerd(t *testing.T, host *harness.Host) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	said := func() string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
	c := host.Command(t.Context(), self, argument)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("the log of containerd:\n%s", said())
		}
	})
	harness.Eventually(t, patience, "containerd", func() error {
		if !strings.Contains(said(), ready) {
			return fmt.Errorf("it is not ready: %s", said())
		}
		return nil
	})
}

// judge wants all tests to pass that the table does not have, and those in the table to fail.
func judge(t *testing.T, outcomes []ginkgo.Outcome) {
	t.Helper()
	for _, o := range outcomes {
		reason := why(o.Name)
		switch {
		case o.State == ginkgo.Failed && reason == "":
			t.Errorf("%s fails: %s", o.Name, o.Summary())
		case o.State == ginkgo.Passed && reason != "":
			t.Errorf("%s passes: take it from the table of those that cannot", o.Name)
		}
	}
	if len(outcomes) < fewest && os.Getenv("FOCUS") == "" {
		t.Errorf("%d tests ran, want at least %d", len(outcomes), fewest)
	}
}

// cannot are the ends of the names of tests that fail for a reason other than a fault.
var cannot = []struct{ test, reason string }{
	{"public image with digest should be pulled and removed", "it pulls an image by its digest. Only a registry of the Internet has the image"},
	{"runtime should support MaskedPaths", "it masks /bin/ls. In this image /bin/ls is a link to Debian's busybox, whose shell does not need the link"},
}

// why returns why a test fails, or nothing if it must pass.
func why(name string) string {
	i := slices.IndexFunc(cannot, func(c struct{ test, reason string }) bool { return strings.HasSuffix(name, c.test) })
	if i < 0 {
		return ""
	}
	return cannot[i].reason
}

// writePage writes a table of how the tests ended, below build.
func writePage(t *testing.T, outcomes []ginkgo.Outcome) {
	t.Helper()
	count, rest := map[ginkgo.State]int{}, ""
	for _, o := range outcomes {
		count[o.State]++
		switch o.State {
		case ginkgo.Failed:
			rest += fmt.Sprintf("- failed: %s: %s\n", o.Name, cmp.Or(why(o.Name), o.Summary()))
		case ginkgo.Skipped:
			rest += fmt.Sprintf("- skipped: %s: %s\n", o.Name, o.Summary())
		}
	}
	page := fmt.Sprintf("# The validation suite of the CRI\n\n%d passed, %d failed, %d skipped.\n\n%s",
		count[ginkgo.Passed], count[ginkgo.Failed], count[ginkgo.Skipped], rest)
	folder := "../../build/cri"
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "results.md"), []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}
