// Package k3ssetups starts kedge with configuration files of k3s, unchanged, as they are in ten kinds of
// set-ups. Each starts a kedge, or is refused with a sentence that says what to do. The files are
// those of internal/server TestK3sSetUps.
package k3ssetups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// setUps are the tests of the files. A test may use more than one.
var setUps = []struct {
	files []string
	test  func(*testing.T)
}{
	{[]string{"single"}, testSingle},
	{[]string{"ha-etcd-first", "ha-etcd-next"}, testHAEtcd},
	{[]string{"ha-mysql"}, testHAMySQL},
	{[]string{"cilium"}, testCilium},
	{[]string{"calico"}, testCalico},
	{[]string{"rancher"}, testRancher},
	{[]string{"raspberry-pi"}, testRaspberryPi},
	{[]string{"air-gap"}, testAirGap},
	{[]string{"s3"}, testS3},
	{[]string{"wireguard"}, testWireGuard},
	{[]string{"tailscale"}, func(t *testing.T) {
		refused(t, "tailscale", "run the VPN on the host, and set node-ip to the address of the host in the VPN.")
	}},
	{[]string{"rootless"}, func(t *testing.T) { refused(t, "rootless", "remove the key, and run kedge as root.") }},
}

func TestSetUps(t *testing.T) {
	harness.Require(t)
	unused := map[string]bool{}
	files, err := filepath.Glob(path(t, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		unused[strings.TrimSuffix(filepath.Base(file), ".yaml")] = true
	}
	for _, s := range setUps {
		for _, file := range s.files {
			delete(unused, file)
		}
		t.Run(s.files[0], s.test)
	}
	if len(unused) > 0 {
		t.Errorf("%v have no test", unused)
	}
}

// path returns the path of a file that is shared with the unit test.
func path(t *testing.T, file string) string {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(repository, "internal/server/testdata/k3s", file)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newHost makes a host whose only configuration is the file of a set-up, which knows the addresses of
// names.
func newHost(t *testing.T, network *harness.Network, host, file string, names ...string) *harness.Host {
	t.Helper()
	h := cluster.NewHost(t, network, host)
	h.WriteFile("/etc/kedge/config.yaml", read(t, file+".yaml"))
	know(h, names...)
	return h
}

// know adds lines to /etc/hosts.
func know(h *harness.Host, names ...string) {
	h.WriteFile("/etc/hosts", fmt.Sprintf("127.0.0.1 localhost\n%s %s\n%s\n", h.Address, h.Name, strings.Join(names, "\n")))
}

// start starts a server on a host of newHost and waits until its API is ready. It checks what the log
// says of the names in the configuration.
func start(t *testing.T, h *harness.Host, file string) *cluster.Cluster {
	t.Helper()
	server := h.StartConfiguredServer(t)
	server.WaitAPI()
	wantNotices(t, file, server.Log())
	return cluster.Of(t, server)
}

// noticeLine is a line of the log about a name in the configuration, without the place of that.
var noticeLine = regexp.MustCompile(`level=info msg=("(?:[^"\\]|\\.)*") component=config`)

// wantNotices compares what a log says of names in the configuration with the golden file of a set-up.
func wantNotices(t *testing.T, file, log string) {
	t.Helper()
	var got strings.Builder
	for _, line := range noticeLine.FindAllStringSubmatch(log, -1) {
		text, err := strconv.Unquote(line[1])
		if err != nil {
			t.Fatal(err)
		}
		if place, says, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(place, "/etc/kedge/config.yaml") {
			fmt.Fprintln(&got, says)
		}
	}
	if want := read(t, file+".notices"); got.String() != want {
		t.Errorf("the log says\n%swant\n%s", &got, want)
	}
}

// refused wants kedge to refuse to start with the file of a set-up.
func refused(t *testing.T, file, sentence string) {
	t.Helper()
	wantRefused(t, newHost(t, harness.NewNetwork(t), "server-1", file).StartConfiguredServer(t), sentence)
}

func wantRefused(t *testing.T, server *harness.Server, sentence string) {
	t.Helper()
	if code := server.WaitExit(cluster.Patience); code == 0 || !strings.Contains(server.LogTail(), sentence) {
		t.Errorf("status %d, want %q in\n%s", code, sentence, server.LogTail())
	}
}

// wantReady waits until the node is Ready, and a pod answers by the name of its Service.
func wantReady(c *cluster.Cluster) {
	c.Helper()
	c.Server.WaitReady()
	c.RunWeb("web", c.Server.Host.Name)
	c.ServeWeb()
	c.Answers("web", "http://web.default.svc.cluster.local/", "web")
}

// wantNoNetwork waits until the node says that it waits for a network, and makes sure that the API
// continues to answer.
func wantNoNetwork(c *cluster.Cluster) {
	c.Helper()
	node := c.Server.Host.Name
	c.Eventually("the node to say that it has no network", func() error {
		text, err := c.TryKubectl("", "get", "node", node, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')]}")
		if err == nil && (!strings.Contains(text, `"False"`) || !strings.Contains(text, "cni plugin not initialized")) {
			err = errors.New(text)
		}
		return err
	})
	time.Sleep(5 * time.Second) // it does not give up
	c.WaitNode(node, corev1.ConditionFalse)
	if text := c.Kubectl("get", "--raw", "/readyz"); text != "ok" {
		c.Errorf("/readyz says %q", text)
	}
}

// get returns a part of the node.
func get(c *cluster.Cluster, part string) string {
	c.Helper()
	return c.Kubectl("get", "node", c.Server.Host.Name, "-o", "jsonpath={"+part+"}")
}

// run runs a command on a host.
func run(t *testing.T, h *harness.Host, name string, args ...string) string {
	t.Helper()
	output, err := h.Command(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

func testSingle(t *testing.T) {
	h := newHost(t, harness.NewNetwork(t), "server-1", "single", "127.0.0.1 foo.local")
	c := start(t, h, "single")
	wantReady(c)
	if foo, something := get(c, ".metadata.labels.foo"), get(c, ".metadata.labels.something"); foo != "bar" || something != "amazing" {
		t.Errorf("the labels are %q and %q", foo, something)
	}
	c.Kubectl("--server=https://foo.local:6443", "get", "nodes")
	if mode := run(t, h, "stat", "-c", "%a", "/etc/kedge/kedge.yaml"); mode != "644" {
		t.Errorf("the kubeconfig has the mode %s", mode)
	}
}

// testHAEtcd starts two servers. The second one has the secret of the token, as in k3s: kedge says where
// the whole token is.
func testHAEtcd(t *testing.T) {
	network := harness.NewNetwork(t)
	first := newHost(t, network, "server-1", "ha-etcd-first")
	name := first.Address.String() + " k3s.example.com"
	know(first, name)
	c := start(t, first, "ha-etcd-first")
	c.Server.WaitReady()
	c.Kubectl("--server=https://k3s.example.com:6443", "get", "nodes")

	second := newHost(t, network, "server-2", "ha-etcd-next", name)
	wantRefused(t, second.StartConfiguredServer(t), "give the whole token, K10...::..., as it is in /var/lib/kedge/server/token on the server")
	token := c.Server.Token()
	if !strings.HasSuffix(token, "::server:SECRET") {
		t.Errorf("the token is %q", token)
	}
	second.WriteFile("/etc/kedge/config.yaml.d/token.yaml", "token: "+token+"\n")
	other := start(t, second, "ha-etcd-next")
	wantReady(other)
	if nodes := other.Kubectl("get", "nodes", "-o", "name"); nodes != "node/server-1\nnode/server-2" {
		t.Errorf("the nodes are %s", nodes)
	}
}

// testCilium has neither a network nor a service proxy, which Cilium would bring.
func testCilium(t *testing.T) {
	h := newHost(t, harness.NewNetwork(t), "server-1", "cilium")
	c := start(t, h, "cilium")
	wantNoNetwork(c)
	if tables := run(t, h, "/run/kedge/bin/nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("there are the tables\n%s", tables)
	}
	if cidr := get(c, ".spec.podCIDR"); cidr != "10.42.0.0/24" {
		t.Errorf("the node has the range %s", cidr)
	}
}

// testCalico has no network, which Calico would bring, and waits for a cloud controller.
func testCalico(t *testing.T) {
	c := start(t, newHost(t, harness.NewNetwork(t), "server-1", "calico"), "calico")
	wantNoNetwork(c)
	if taints := get(c, ".spec.taints"); !strings.Contains(taints, "node.cloudprovider.kubernetes.io/uninitialized") {
		t.Errorf("the node has the taints %s", taints)
	}
	if cidr := get(c, ".spec.podCIDR"); cidr != "192.168.0.0/24" {
		t.Errorf("the node has the range %s", cidr)
	}
}

// testRancher has the file where Rancher writes it, and a registries.yaml beside k3s's.
func testRancher(t *testing.T) {
	h := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	h.WriteFile("/etc/kedge/config.yaml.d/50-rancher.yaml", read(t, "rancher.yaml"))
	h.WriteFile("/etc/rancher/k3s/registries.yaml", `{"mirrors":null,"configs":{}}`)
	c := start(t, h, "rancher")
	wantReady(c)
	if os := get(c, `.metadata.labels.cattle\.io/os`); os != "linux" {
		t.Errorf("the label is %q", os)
	}
}

// testRaspberryPi has its state on another disk, and what is written often in memory.
func testRaspberryPi(t *testing.T) {
	h := newHost(t, harness.NewNetwork(t), "server-1", "raspberry-pi")
	for _, folder := range []string{"/mnt", "/var/log"} {
		if err := h.Mount("tmpfs", folder, "tmpfs", "mode=755"); err != nil {
			t.Fatal(err)
		}
	}
	server := h.StartConfiguredServer(t)
	server.WaitReady()
	log, err := os.ReadFile(h.Path("/run/k3s.log"))
	if err != nil {
		t.Fatal(err)
	}
	wantNotices(t, "raspberry-pi", string(log))
	c := cluster.Of(t, server)
	if pods := get(c, ".status.capacity.pods"); pods != "50" {
		t.Errorf("the node takes %s pods", pods)
	}
	if _, err := os.Stat(h.Path("/mnt/ssd/k3s/server/db/state.db")); err != nil {
		t.Error(err)
	}
	if services := c.Kubectl("get", "apiservices", "-o", "name"); strings.Contains(services, "metrics.k8s.io") {
		t.Errorf("there are metrics of pods: %s", services)
	}
	server.Restart()
}

// testWireGuard starts where the kernel has WireGuard, and is refused elsewhere.
func testWireGuard(t *testing.T) {
	h := newHost(t, harness.NewNetwork(t), "server-1", "wireguard")
	ip := func(args ...string) error {
		_, err := h.Command(t.Context(), harness.Busybox(t), append([]string{"ip"}, args...)...).Output()
		return err
	}
	if err := ip("address", "add", "10.0.0.10/24", "dev", "eth0"); err != nil {
		t.Fatal(err)
	}
	if err := ip("link", "add", "probe", "type", "wireguard"); err == nil {
		if err := ip("link", "delete", "probe"); err != nil {
			t.Fatal(err)
		}
		wantReady(start(t, h, "wireguard"))
		return
	}
	server := h.StartConfiguredServer(t)
	wantRefused(t, server, "this kernel has no wireguard: load the module or choose another flannel-backend")
	wantNotices(t, "wireguard", server.Log())
}
