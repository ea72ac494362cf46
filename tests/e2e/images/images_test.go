// Package images tests every way in which nodes get images: from mirrors, from archives, by
// commands, and from each other.
package images

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/registry"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	registryName   = "mirror.test"
	registriesFile = "/etc/kedge/registries.yaml"
	authorityFile  = "/etc/kedge/mirror.crt"
	imagesFolder   = "/var/lib/kedge/agent/images"
)

// newHost makes a host that knows the names of the registries and their certificate authority.
func newHost(t *testing.T, network *harness.Network, r *registry.Registry, name string) *harness.Host {
	t.Helper()
	host := network.NewHost(t, name)
	host.WriteFile("/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s registry.test\n", r.Host.Address, registryName))
	host.WriteFile(authorityFile, string(r.Authority))
	host.WriteFile(registriesFile, registriesYAML("first"))
	return host
}

// registriesYAML makes the images of registry.test, which does not exist, come from a mirror under
// another name.
func registriesYAML(password string) string {
	return fmt.Sprintf(`
mirrors:
  registry.test:
    endpoint: ["https://%[1]s:5000"]
    rewrite:
      "^(.*)$": "mirror/$1"
configs:
  "%[1]s:5000":
    auth: {username: reader, password: %[2]q}
    tls: {ca_file: %[3]s}
`, registryName, password, authorityFile)
}

// run starts a pod with an image on a node.
func run(c *cluster.Cluster, name, node, image string) {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: %q}]
`, name, node, image))
}

func TestImages(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	r := registry.Start(t, network, registryName)
	r.Add(t, "mirror/app:1", registry.Archive(t, "registry.test/app:1"))
	r.Add(t, "mirror/app:2", registry.Archive(t, "registry.test/app:2"))
	r.Add(t, "mirror/listed:1", registry.Archive(t, "registry.test/listed:1"))

	t.Log("a broken registries.yaml is refused at the start")
	host := newHost(t, network, r, "server-1")
	host.WriteFile(registriesFile, "mirrors:\n  registry.test:\n    endpoint: [\"ftp://x\"]\n")
	broken := host.Kedge(t.Context(), "server")
	if output, err := broken.CombinedOutput(); err == nil || !strings.Contains(string(output), registriesFile+": line 3: endpoint \"ftp://x\"") {
		t.Errorf("it says %v: %s", err, output)
	}
	host.WriteFile(registriesFile, registriesYAML("first"))
	server := host.StartServer(t, "--embedded-registry")
	server.WaitReady()
	c := cluster.Of(t, server)

	t.Log("a mirror with another name for the image, TLS and a password")
	run(c, "first", "server-1", "registry.test/app:1")
	c.Pod("first")

	t.Log("registries.yaml is reloaded, and a broken one is not used")
	r.SetPassword("second")
	run(c, "second", "server-1", "registry.test/app:2")
	c.Told(cluster.Namespace, "second", "401 Unauthorized")
	host.WriteFile(registriesFile, "mirrors: [")
	server.WaitLog("kedge keeps using the previous registries.yaml until this is corrected: read registries: " + registriesFile)
	c.Told(metav1.NamespaceDefault, "server-1", "kedge keeps using the previous registries.yaml")
	host.WriteFile(registriesFile, registriesYAML("second"))
	c.Pod("second")
	kedge(c, "ctr", "images", "pull", "registry.test/app:2")

	t.Log("archives and lists in the folder, while kedge runs")
	host.WriteFile(imagesFolder+"/broken.tar.zst", "not an archive")
	host.WriteFile(imagesFolder+"/archive.tar", string(registry.Archive(t, "nowhere.test/preloaded:1")))
	host.WriteFile(imagesFolder+"/list.txt", "# of an air gap\nregistry.test/listed:1\n")
	server.WaitLog("broken.tar.zst (kedge tries again when the file changes)")
	c.Told(metav1.NamespaceDefault, "server-1", "broken.tar.zst (kedge tries again when the file changes)")
	wantPinned(c, "nowhere.test/preloaded:1", true)
	wantPinned(c, "registry.test/listed:1", true)
	run(c, "preloaded", "server-1", "nowhere.test/preloaded:1")
	c.Pod("preloaded")
	digest := c.Kubectl("get", "pod", "preloaded", "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	run(c, "by-digest", "server-1", "nowhere.test/preloaded@"+digest[strings.LastIndex(digest, "sha256:"):])
	c.Pod("by-digest")
	host.WriteFile(imagesFolder+"/archive.tar.lz4", "not read")
	c.Told(metav1.NamespaceDefault, "server-1", "archive.tar.lz4")
	for _, name := range []string{"archive.tar", "list.txt"} {
		if err := os.Remove(host.Path(imagesFolder + "/" + name)); err != nil {
			t.Fatal(err)
		}
	}
	wantPinned(c, "nowhere.test/preloaded:1", false)
	wantPinned(c, "registry.test/listed:1", false)

	t.Log("kedge image")
	host.WriteFile("/run/imported.tar", string(registry.Archive(t, "nowhere.test/imported:1")))
	if got := kedge(c, "image", "import", "/run/imported.tar"); got != "nowhere.test/imported:1\n" {
		t.Errorf("import prints %q", got)
	}
	wantPinned(c, "nowhere.test/imported:1", true)
	kedge(c, "image", "export", "-o", "/run/exported.tar", "nowhere.test/imported:1", "registry.test/app:1")
	kedge(c, "crictl", "rmi", "nowhere.test/imported:1")
	if list := kedge(c, "image", "list"); strings.Contains(list, "imported") || !strings.Contains(list, "registry.test/app:1") {
		t.Errorf("the images are\n%s", list)
	}
	if got := kedge(c, "image", "import", "/run/exported.tar"); got != "nowhere.test/imported:1\nregistry.test/app:1\n" {
		t.Errorf("import of the exported archive: got %q, want both names", got)
	}
	run(c, "imported", "server-1", "nowhere.test/imported:1")
	c.Pod("imported")
	for want, args := range map[string][]string{
		"this node has no image docker.io/library/nothing:latest": {"image", "export", "-o", "/run/no.tar", "nothing"},
		"import images of " + registriesFile + ": unexpected EOF": {"image", "import", registriesFile},
		"needs arguments: give archives":                          {"image", "import"},
	} {
		if output, err := host.Kedge(t.Context(), args...).CombinedOutput(); err == nil || !strings.Contains(string(output), want) {
			t.Errorf("%v says %s, want %q", args, output, want)
		}
	}

	t.Log("a second node gets its images from the first")
	other := newHost(t, network, r, "agent-1")
	other.WriteFile(registriesFile, registriesYAML("second"))
	other.StartAgent(t, server).WaitReady()
	before := r.Pulled("mirror/app", "blobs")
	run(c, "shared", "agent-1", "registry.test/app:2")
	c.Pod("shared")
	if after := r.Pulled("mirror/app", "blobs"); after != before {
		t.Errorf("the registry was asked for content %d times more", after-before)
	}

	t.Log("this also works without the registry")
	r.Stop()
	run(c, "offline", "agent-1", "registry.test/app:1")
	c.Pod("offline")
	run(c, "nowhere", "agent-1", "registry.test/nothing:1")
	c.Told(cluster.Namespace, "nowhere", "connection refused", "the servers of this cluster do not have the image either")

	t.Log("only nodes get images")
	for user, want := range map[string]string{"": "certificate required", "system:admin": "not the certificate of a node"} {
		if got := asUser(t, server, user, other.Address.String()); !strings.Contains(got, want) {
			t.Errorf("%q is told %q, want %q", user, got, want)
		}
	}
}

// asUser asks a node for an image, as the administrator or as nobody, and returns the answer.
func asUser(t *testing.T, server *harness.Server, user, address string) string {
	t.Helper()
	config := server.RESTConfig()
	settings := &tls.Config{InsecureSkipVerify: true}
	if user != "" {
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	client := http.Client{Transport: &http.Transport{DialContext: server.Host.DialContext, TLSClientConfig: settings}}
	defer client.CloseIdleConnections()
	response, err := client.Get("https://" + address + ":5001/v2/app/manifests/1?ns=registry.test")
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.Status + ": " + string(text)
}

// kedge runs kedge on the server's host and returns its output.
func kedge(c *cluster.Cluster, args ...string) string {
	c.Helper()
	output, err := c.Server.Host.Kedge(c.Context(), args...).Output()
	if err != nil {
		c.Fatal(err)
	}
	return string(output)
}

// wantPinned waits until an image is on the server, and is pinned or not.
func wantPinned(c *cluster.Cluster, name string, pinned bool) {
	c.Helper()
	c.Eventually(fmt.Sprintf("image %s to be pinned: %t", name, pinned), func() error {
		var list []struct {
			Name   string
			Pinned bool
		}
		text := kedge(c, "image", "list", "-o", "json")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return err
		}
		for _, image := range list {
			if image.Name == name && image.Pinned == pinned {
				return nil
			}
		}
		return fmt.Errorf("there is %s", text)
	})
}
