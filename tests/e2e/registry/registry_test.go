// Package registry pushes images to the registry of a throw-away cluster with Debian's Buildah and Skopeo,
// as users do.
package registry

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/registry"
	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	clients = "127.0.0.1:32000"
	nodes   = "0.0.0.0:5000"
	// folder says that this process is the keeper of a cluster, and where its images are.
	folder = "REGISTRY_FOLDER"
)

var suite harness.Suite

func TestMain(m *testing.M) {
	if images := os.Getenv(folder); images != "" {
		fmt.Println(keep(images))
		os.Exit(1)
	}
	os.Exit(suite.Main(m))
}

// keep serves a registry until it is killed.
func keep(images string) error {
	r, err := registry.New(images)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for address, handler := range map[string]http.Handler{clients: r.Clients(0), nodes: r.Nodes()} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() { failed <- http.Serve(listener, handler) }()
	}
	return <-failed
}

// TestBuildahAndSkopeo builds and pushes an image on one host, and pulls it on another one by the
// address for nodes, before and after the keeper is killed.
func TestBuildahAndSkopeo(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "buildah", "skopeo")
	network := harness.NewNetwork(t)
	user, node := network.NewHost(t, "user"), network.NewHost(t, "node")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	user.CopyProgram(self, "/usr/local/bin/keeper")
	run := func(host *harness.Host, command string) (string, error) {
		t.Helper()
		output, err := host.Command(t.Context(), "sh", "-ec", command).CombinedOutput()
		return string(output), err
	}
	must := func(host *harness.Host, command string) string {
		t.Helper()
		output, err := run(host, command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, output)
		}
		return output
	}
	keeper := func() *harness.Cmd {
		t.Helper()
		command := user.Command(t.Context(), "/usr/local/bin/keeper")
		command.Env = append(command.Env, folder+"=/var/lib/images")
		command.Stdout, command.Stderr = os.Stdout, os.Stderr
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, time.Minute, "the registry to listen", func() error {
			connection, err := user.DialContext(t.Context(), "tcp", clients)
			if err == nil {
				err = connection.Close()
			}
			return err
		})
		return command
	}
	first := keeper()

	must(user, `mkdir -p /tmp/build && cd /tmp/build && head -c 3000000 /dev/urandom >data && printf 'FROM scratch\nCOPY data /data\n' >Containerfile
		export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
		buildah --root /tmp/root --runroot /tmp/run bud -t localhost:32000/team/app:v1 .
		buildah --root /tmp/root --runroot /tmp/run push --tls-verify=false localhost:32000/team/app:v1
		buildah --root /tmp/root --runroot /tmp/run push --tls-verify=false --format v2s2 localhost:32000/team/app:v1 docker://localhost:32000/team/app:docker
		skopeo copy --src-tls-verify=false --dest-tls-verify=false docker://localhost:32000/team/app:v1 docker://localhost:32000/other:v2
		skopeo delete --tls-verify=false docker://localhost:32000/team/app:docker`)
	from := "docker://" + net.JoinHostPort(user.Address.String(), "5000")
	pull := func() {
		t.Helper()
		for _, image := range []string{"/team/app:v1", "/other:v2"} {
			must(node, "rm -rf /tmp/pulled; skopeo copy --src-tls-verify=false "+from+image+" dir:/tmp/pulled")
			must(node, "skopeo inspect dir:/tmp/pulled")
		}
		tags := must(user, "skopeo list-tags --tls-verify=false docker://localhost:32000/team/app")
		if !strings.Contains(tags, `"v1"`) || strings.Contains(tags, `"docker"`) {
			t.Errorf("got tags %s", tags)
		}
	}
	pull()
	output, err := run(node, "skopeo copy --dest-tls-verify=false dir:/tmp/pulled "+from+"/team/app:v1")
	if err == nil || !strings.Contains(output, "cannot change its images") {
		t.Errorf("a node pushes: %v, %s", err, output)
	}
	output, err = run(user, "chmod -R a+rX /tmp/build; setpriv --reuid 12345 --clear-groups env HOME=/tmp/stranger skopeo list-tags --tls-verify=false docker://localhost:32000/team/app")
	if err == nil || !strings.Contains(output, "403 (Forbidden)") {
		t.Errorf("another user lists tags: %v, %s", err, output)
	}

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	keeper()
	pull()
	if left, _ := filepath.Glob(user.Path("/var/lib/images/content/ingest/*")); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}
