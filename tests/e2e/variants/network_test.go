package variants

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestDualStack gives pods and Services a range of each address family.
func TestDualStack(t *testing.T) {
	t.Parallel()
	c := start(t, newHost(t),
		"--cluster-cidr=10.42.0.0/16,fd00:42::/56", "--service-cidr=10.43.0.0/16,fd00:43::/112")
	c.works()

	web := c.pod("web")
	for i, family := range []string{"10.42.0.0/16", "fd00:42::/56"} {
		for _, pod := range []string{"client", "web"} {
			ips := c.pod(pod).Status.PodIPs
			if len(ips) != 2 || !netip.MustParsePrefix(family).Contains(netip.MustParseAddr(ips[i].IP)) {
				t.Fatalf("pod %s has the addresses %v", pod, ips)
			}
		}
	}
	service, err := c.client.CoreV1().Services("default").Get(c.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ips := service.Spec.ClusterIPs; len(ips) != 2 || !netip.MustParsePrefix("fd00:43::/112").Contains(netip.MustParseAddr(ips[1])) {
		t.Fatalf("Service web, of ipFamilyPolicy PreferDualStack, has the addresses %v", ips)
	}
	addresses := strings.Fields(c.in("client", "/testserver", "lookup", "host", "web.default.svc.cluster.local"))
	for _, ip := range service.Spec.ClusterIPs {
		if !slices.Contains(addresses, ip) {
			t.Errorf("DNS knows %v of Service web, which has %s", addresses, ip)
		}
		c.answers("client", "http://"+net.JoinHostPort(ip, "80")+"/")
	}
	c.answers("client", "http://"+net.JoinHostPort(web.Status.PodIPs[1].IP, "8080")+"/")
	c.nodePortAnswers(c.host, c.host.Address6.String())
	if names := c.in("client", "/testserver", "lookup", "ptr", service.Spec.ClusterIPs[1]); names != "web.default.svc.cluster.local." {
		t.Errorf("the name of %s is %q", service.Spec.ClusterIPs[1], names)
	}

	// The cluster's DNS has an address of each family too.
	dns, err := c.client.CoreV1().Services("kube-system").Get(c.ctx, "kube-dns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "10.43.0.10 fd00:43::a"; strings.Join(dns.Spec.ClusterIPs, " ") != want {
		t.Errorf("DNS has the addresses %v, want %s", dns.Spec.ClusterIPs, want)
	}
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: ipv6-resolver}
spec:
  terminationGracePeriodSeconds: 1
  dnsPolicy: None
  dnsConfig: {nameservers: ["fd00:43::a"]}
  containers: [{name: main, image: "` + testserver + `", args: [sleep]}]
`)
	c.pod("ipv6-resolver")
	c.answers("ipv6-resolver", "http://web.default.svc.cluster.local/")

	node, err := c.client.CoreV1().Nodes().Get(c.ctx, c.host.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var internal []string
	for _, address := range node.Status.Addresses {
		if address.Type == "InternalIP" {
			internal = append(internal, address.Address)
		}
	}
	if want := c.host.Address.String() + " " + c.host.Address6.String(); strings.Join(internal, " ") != want {
		t.Errorf("node has the addresses %v, want %s", internal, want)
	}
}

// TestIPv6First puts IPv6 first: it is the family of Services that name none, and of the API's Service.
func TestIPv6First(t *testing.T) {
	t.Parallel()
	c := start(t, newHost(t),
		"--cluster-cidr=fd00:42::/56,10.42.0.0/16", "--service-cidr=fd00:43::/112,10.43.0.0/16")
	c.works()
	if address := c.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"); address != "fd00:43::1" {
		t.Errorf("the API's Service is at %s", address)
	}
	for _, address := range []string{"[fd00:43::1]", "kubernetes.default"} {
		c.in("client", "/testserver", "fetch", "https://"+address+"/readyz")
	}
}

// TestIPTables lets the service proxy use iptables, and then goes back. It also tries the backend
// host-gw.
func TestIPTables(t *testing.T) {
	t.Parallel()
	network := harness.NewNetwork(t)
	host := newHostOn(t, network, "server-1")
	neighbour := network.NewHost(t, "neighbour")
	before := state(t, host)
	c := start(t, host, "--kube-proxy-arg=proxy-mode=iptables", "--flannel-backend=host-gw")
	c.works()
	c.nodePortAnswers(neighbour, host.Address.String())
	iptables := filepath.Join("/run/kedge/bin", "iptables-save")
	if rules := run(t, host, iptables, "-t", "nat"); !strings.Contains(rules, "KUBE-SERVICES") || !strings.Contains(rules, "default/web") {
		t.Errorf("iptables has no rule for Service web:\n%s", rules)
	}
	if tables := run(t, host, "/run/kedge/bin/nft", "list", "tables"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("nftables has rules of the service proxy:\n%s", tables)
	}
	if links := run(t, host, "ls", "/sys/class/net"); strings.Contains(links, "flannel") {
		t.Errorf("host-gw needs no device, there are %s", links)
	}

	c.server.Terminate()
	c = start(t, host, "--flannel-backend=host-gw")
	c.works()
	if rules := run(t, host, iptables); strings.Contains(rules, "default/web") {
		t.Errorf("iptables still has rules after the change to nftables:\n%s", rules)
	}
	c.server.Terminate()
	c = start(t, host, "--kube-proxy-arg=proxy-mode=iptables", "--flannel-backend=host-gw")
	c.works()

	if output, err := host.Kedge(context.Background(), "killall").CombinedOutput(); err != nil {
		t.Fatalf("killall: %v\n%s", err, output)
	}
	if after := state(t, host); after != before {
		t.Errorf("killall left something: before\n%s\nafter\n%s", before, after)
	}
}

// state returns what killall must restore.
func state(t *testing.T, host *harness.Host) string {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	nft := filepath.Join(repository, "build", runtime.GOARCH, "bundle/bin/nft")
	return fmt.Sprintf("links: %s\nroutes: %s\nmounts:\n%s\nrules:\n%s\n",
		strings.Join(strings.Fields(run(t, host, "ls", "/sys/class/net")), " "),
		run(t, host, "cat", "/proc/net/route"),
		run(t, host, "cat", "/proc/self/mounts"),
		run(t, host, nft, "list", "ruleset"))
}

// TestOwnCNI brings another network: kedge starts no flannel, and the node becomes Ready when there
// is a configuration in /etc/cni/net.d.
func TestOwnCNI(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	server := host.StartServer(t, "--flannel-backend=none")
	harness.Eventually(t, patience, "the node to say that it has no network", func() error {
		output, err := host.Kedge(context.Background(), "kubectl", "get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')]}").Output()
		if err == nil && !strings.Contains(string(output), "NetworkPluginNotReady") && !strings.Contains(string(output), "cni plugin not initialized") {
			err = fmt.Errorf("condition Ready: %s", output)
		}
		return err
	})
	host.WriteFile("/etc/cni/net.d/50-own.conflist", ownNetwork)
	server.WaitReady()
	c := newCluster(t, server)
	c.works()
	links := strings.Fields(run(t, host, "ls", "/sys/class/net"))
	if !slices.Contains(links, "own0") || slices.Contains(links, "cni0") || slices.Contains(links, "flannel.1") {
		t.Errorf("interfaces are %v", links)
	}
}
