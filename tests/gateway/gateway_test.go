// Package gateway runs the conformance suite of the Gateway API against the real kedge, on hosts made
// by tests/harness. `make conformance-gateway` builds what it needs and calls it.
package gateway

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// What is where on a host.
const (
	kubeconfig = "/etc/kedge/kedge.yaml"
	poolFile   = "/var/lib/kedge/server/manifests/pool.yaml"
	report     = "/var/log/report.yaml"
)

// TestGatewayAPI runs the suite on a host outside of a cluster of two nodes, and leaves its log, the
// report and the logs of both nodes in build/gateway. RUN names the only test to run.
func TestGatewayAPI(t *testing.T) {
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(repository, "build", "gateway")
	images := archives(t, repository)
	network := harness.NewNetwork(t)

	first := network.NewHost(t, "server-1")
	first.Preload(images...)
	pool, err := os.ReadFile("pool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first.WriteFile(poolFile, string(pool))
	server := first.StartServer(t)
	keepLog(t, filepath.Join(out, "server-1.log"), server.Log)
	server.WaitReady()
	second := network.NewHost(t, "agent-1")
	second.Preload(images...)
	agent := second.StartAgent(t, server)
	keepLog(t, filepath.Join(out, "agent-1.log"), agent.Log)
	agent.WaitReady()

	outside := network.NewHost(t, "client-1")
	writeKubeconfig(t, outside, first)
	version, err := server.Client().Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(out, "suite.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	t.Logf("the suite writes to %s", log.Name())
	command := outside.Command(context.Background(), filepath.Join(out, "suite.test"), "-test.v", "-test.timeout=90m")
	command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "REPORT="+report, "VERSION="+version.GitVersion,
		"USABLE=172.31.0.150", "UNUSABLE=192.0.2.7")
	command.Stdout, command.Stderr = log, log
	runErr := command.Run()
	if err := harness.CopyFile(outside.Path(report), filepath.Join(out, "report.yaml")); err != nil {
		t.Errorf("the suite left no report: %v", err)
	}
	if runErr != nil {
		t.Errorf("the suite failed: %v:\n%s", runErr, strings.Join(failed(t, log.Name()), "\n"))
	}
}

// archives returns the images that the suite's pods want.
func archives(t *testing.T, repository string) []string {
	t.Helper()
	var all []string
	for _, name := range []string{
		"registry.k8s.io/gateway-api/echo-basic:v1.5.1",
		"registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.2",
		"registry.k8s.io/gateway-api/echo-basic:v1.6.0-dev.3",
	} {
		archive, err := image.Program(repository, "sigs.k8s.io/gateway-api/conformance/echo-basic", name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, archive)
	}
	archive, err := image.Program(repository, "github.com/kedge-dev/kedge/tests/gateway/coredns", "registry.k8s.io/coredns/coredns:v1.12.2")
	if err != nil {
		t.Fatal(err)
	}
	return append(all, archive)
}

// failed returns the lines of the log that name failed tests.
func failed(t *testing.T, path string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "--- FAIL") {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

// keepLog writes the log of a kedge to a file when the test ends.
func keepLog(t *testing.T, path string, log func() string) {
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(log()), 0o644); err != nil {
			t.Error(err)
		}
	})
}

// writeKubeconfig gives a host the administrator's kubeconfig of the server.
func writeKubeconfig(t *testing.T, host, server *harness.Host) {
	t.Helper()
	text, err := os.ReadFile(server.Path(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	host.WriteFile(kubeconfig, strings.ReplaceAll(string(text), "https://127.0.0.1:", fmt.Sprintf("https://%s:", server.Address)))
}
