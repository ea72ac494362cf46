package reach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestReadPlace(t *testing.T) {
	resolver := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolver, []byte("nameserver 10.43.0.10\n"+strings.Repeat("#", 2*longestResolver)), 0o600); err != nil {
		t.Fatal(err)
	}
	mount := `"mounts": [{"destination": "/dev/shm", "source": "/none"}, {"destination": "/etc/resolv.conf", "source": "` + resolver + `"}]`
	for name, test := range map[string]struct {
		info   string
		inNode bool
		netns  string
		fault  string
	}{
		"pod":               {`{"runtimeSpec": {"linux": {"namespaces": [{"type": "ipc"}, {"type": "network", "path": "/run/netns/cni-7"}]}, ` + mount + `}}`, false, "/run/netns/cni-7", ""},
		"in the node":       {`{"runtimeSpec": {"linux": {"namespaces": [{"type": "ipc"}]}, ` + mount + `}}`, true, "", ""},
		"no namespace":      {`{"runtimeSpec": {"linux": {"namespaces": [{"type": "ipc"}]}, ` + mount + `}}`, false, "", "the pod has no network"},
		"another runtime":   {`{"pid": 7}`, false, "", "does not tell"},
		"no JSON":           {`7`, false, "", "does not tell"},
		"resolver was lost": {`{"runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": "/n"}]}, "mounts": [{"destination": "/etc/resolv.conf", "source": "/none/here"}]}}`, false, "", "read the pod's resolv.conf"},
	} {
		status := &cri.PodSandboxStatusResponse{Info: map[string]string{"info": test.info}, Status: &cri.PodSandboxStatus{Linux: &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{}}}}}
		if test.inNode {
			status.Status.Linux.Namespaces.Options.Network = cri.NamespaceMode_NODE
		}
		p, err := readPlace(status)
		switch {
		case test.fault != "":
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%s: %v, want %s", name, err, test.fault)
			}
		case err != nil, p.netns != test.netns, !strings.HasPrefix(p.resolver, "nameserver 10.43.0.10\n"), len(p.resolver) != longestResolver:
			t.Errorf("%s: %q with %d bytes, %v", name, p.netns, len(p.resolver), err)
		}
	}
}

// inNamespace runs a test in a network namespace of its own, and returns its file.
func inNamespace(t *testing.T) (path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	made, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(netns.Set(home), home.Close(), made.Close()); err != nil {
			t.Error(err)
		}
		runtime.UnlockOSThread()
	})
	return fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
}

// command runs a program in the network namespace of this thread.
func command(t *testing.T, input string, words ...string) {
	t.Helper()
	c := exec.Command(words[0], words[1:]...)
	c.Stdin = strings.NewReader(input)
	if output, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", words, err, output)
	}
}

func TestDialFromPod(t *testing.T) {
	path := inNamespace(t)
	command(t, "", "ip", "link", "set", "lo", "up")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error)
	go func() { // on another thread, which is in the namespace of the test's process
		conn, err := dial(t.Context(), place{netns: path}, "tcp", listener.Addr().String())
		if err == nil {
			err = conn.Close()
		}
		if _, fault := dial(t.Context(), place{}, "tcp", listener.Addr().String()); fault == nil {
			err = errors.Join(err, errors.New("the node itself has connected to the pod's own loopback address"))
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// rules are such as the service proxy writes: of a Service with and without session affinity, without endpoints, of IPv6, and for an
// address outside of the cluster.
const rules = `
table ip kube-proxy {
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
	}
	map no-endpoint-services {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.43.0.8 . tcp . 80 comment "shop/empty:http" : drop }
	}
	chain endpoint-5OJB2KTY-shop/fixed/tcp/http__10.42.0.5/8080 {
		meta l4proto tcp dnat to 10.42.0.5:8080
	}
	chain endpoint-6OJB2KTY-shop/fixed/tcp/http__10.42.1.7/8080 {
		meta l4proto tcp dnat to 10.42.1.7:8080
	}
	chain service-ULMVA6XW-shop/fixed/tcp/http {
		numgen random mod 2 vmap { 0 : goto endpoint-5OJB2KTY-shop/fixed/tcp/http__10.42.0.5/8080, 1 : goto endpoint-6OJB2KTY-shop/fixed/tcp/http__10.42.1.7/8080 }
	}
	chain service-4IGL4222-shop/web/tcp/ {
		meta l4proto tcp dnat ip addr . port to numgen random mod 2 map { 0 : 10.42.0.2 . 8080, 1 : 10.42.0.3 . 8081 }
	}
	chain service-6IGL4222-shop/one/tcp/ {
		meta l4proto tcp dnat to 10.42.0.4:8080
	}
	chain external-4IGL4222-shop/web/tcp/ {
		fib saddr type local goto service-4IGL4222-shop/web/tcp/
		goto service-4IGL4222-shop/web/tcp/
	}
}
add element ip kube-proxy service-ips { 10.43.0.6 . tcp . 80 : goto service-4IGL4222-shop/web/tcp/ }
add element ip kube-proxy service-ips { 10.43.0.5 . tcp . 80 : goto service-6IGL4222-shop/one/tcp/ }
add element ip kube-proxy service-ips { 10.43.0.7 . tcp . 80 : goto service-ULMVA6XW-shop/fixed/tcp/http }
add element ip kube-proxy service-ips { 192.0.2.7 . tcp . 80 : goto external-4IGL4222-shop/web/tcp/ }
table ip6 kube-proxy {
	map service-ips {
		type ipv6_addr . inet_proto . inet_service : verdict
	}
	chain endpoint-7OJB2KTY-shop/fixed/tcp/http__fd00.42..5/8080 {
		meta l4proto tcp dnat to [fd00:42::5]:8080
	}
	chain service-VLMVA6XW-shop/fixed/tcp/http {
		numgen random mod 1 vmap { 0 : goto endpoint-7OJB2KTY-shop/fixed/tcp/http__fd00.42..5/8080 }
	}
	chain service-7IGL4222-shop/one/tcp/ {
		meta l4proto tcp dnat to [fd00:42::7]:8080
	}
	chain service-5IGL4222-shop/web/tcp/ {
		meta l4proto tcp dnat ip6 addr . port to numgen random mod 1 map { 0 : fd00:42::6 . 8080 }
	}
}
add element ip6 kube-proxy service-ips { fd00:43::7 . tcp . 80 : goto service-VLMVA6XW-shop/fixed/tcp/http }
add element ip6 kube-proxy service-ips { fd00:43::5 . tcp . 80 : goto service-7IGL4222-shop/one/tcp/ }
add element ip6 kube-proxy service-ips { fd00:43::6 . tcp . 80 : goto service-5IGL4222-shop/web/tcp/ }
`

func TestRulesFor(t *testing.T) {
	inNamespace(t)
	if got := rulesFor(t.Context(), netip.MustParseAddrPort("10.43.0.7:80")); got.State != Unknown {
		t.Errorf("without rules: %+v", got)
	}
	command(t, rules, "nft", "-f", "-")
	for target, want := range map[string]struct {
		state     RulesState
		endpoints []string
	}{
		"10.43.0.6:80":    {Sends, []string{"10.42.0.2:8080", "10.42.0.3:8081"}},
		"10.43.0.5:80":    {Sends, []string{"10.42.0.4:8080"}},
		"[fd00:43::5]:80": {Sends, []string{"[fd00:42::7]:8080"}},
		"192.0.2.7:80":    {Sends, []string{"10.42.0.2:8080", "10.42.0.3:8081"}},
		"[fd00:43::6]:80": {Sends, []string{"[fd00:42::6]:8080"}},
		"10.43.0.7:80":    {Sends, []string{"10.42.0.5:8080", "10.42.1.7:8080"}},
		"10.43.0.8:80":    {Refuses, nil},
		"10.43.0.7:81":    {None, nil},
		"[fd00:43::7]:80": {Sends, []string{"[fd00:42::5]:8080"}},
	} {
		got := rulesFor(t.Context(), netip.MustParseAddrPort(target))
		var endpoints []string
		for _, e := range got.Endpoints {
			endpoints = append(endpoints, e.String())
		}
		if got.State != want.state || !slices.Equal(endpoints, want.endpoints) {
			t.Errorf("%s: %s %q, want %s %q", target, got.State, endpoints, want.state, want.endpoints)
		}
	}
}
