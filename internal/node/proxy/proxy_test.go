package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/testutil"
)

func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// place is a network namespace that is connected to the host's by a veth pair.
type place struct{ ns netns.NsHandle }

// within calls do in the place. Sockets that do opens stay there.
func (p place) within(t *testing.T, do func() error) error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		// The thread is never unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		if err := netns.Set(p.ns); err != nil {
			result <- err
			return
		}
		result <- do()
	}()
	return <-result
}

// running returns a source of informers that other components have used for long.
func running(ctx context.Context, client kubernetes.Interface) objectcache.Source {
	factory := informers.NewSharedInformerFactory(client, 0)
	objects := objectcache.New(ctx, factory, client)
	factory.Core().V1().Nodes().Informer()
	factory.Core().V1().Services().Informer()
	factory.Discovery().V1().EndpointSlices().Informer()
	factory.Networking().V1().ServiceCIDRs().Informer()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	return func(ctx context.Context) (informers.SharedInformerFactory, error) {
		return objects.View(ctx, objectcache.Options{}), nil
	}
}

// newPlace connects a new place to the host by the interface name. The host's end has the first
// address of each network, the other end the second.
func newPlace(t *testing.T, name string, networks ...string) place {
	t.Helper()
	made := make(chan netns.NsHandle, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := netns.New()
		if err != nil {
			t.Error(err)
		}
		made <- ns
	}()
	p := place{<-made}
	testutil.Command(t, "ip link add "+name+" type veth peer name "+name+"x")
	far, err := netlink.LinkByName(name + "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsFd(far, int(p.ns)); err != nil {
		t.Fatal(err)
	}
	testutil.Command(t, "ip link set "+name+" up")
	nodad := func(prefix netip.Prefix) string {
		if prefix.Addr().Is6() {
			return " nodad"
		}
		return ""
	}
	commands := []string{"ip link set lo up", "ip link set " + name + "x up"}
	for _, network := range networks {
		prefix := netip.MustParsePrefix(network)
		near := prefix.Addr().Next()
		testutil.Command(t, fmt.Sprintf("ip address add %s/%d dev %s%s", near, prefix.Bits(), name, nodad(prefix)))
		commands = append(commands,
			fmt.Sprintf("ip address add %s/%d dev %sx%s", near.Next(), prefix.Bits(), name, nodad(prefix)),
			fmt.Sprintf("ip route add default via %s", near))
	}
	err = p.within(t, func() error {
		for _, command := range commands {
			testutil.Command(t, command)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testutil.Command(t, "ip link delete "+name)
		p.ns.Close()
	})
	return p
}

// serve answers every connection in the place with text and the caller's address.
func (p place) serve(t *testing.T, address, text string) {
	t.Helper()
	err := p.within(t, func() error {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				caller, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
				fmt.Fprintf(conn, "%s from %s", text, caller)
				conn.Close()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func call(address string) (string, error) {
	conn, err := net.DialTimeout("tcp", address, 3*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// call connects to address from within the place and returns the answer.
func (p place) call(t *testing.T, address string) (answer string, err error) {
	t.Helper()
	err = p.within(t, func() (err error) {
		answer, err = call(address)
		return err
	})
	return answer, err
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen; the rules:\n%s", what, testutil.Command(t, "nft list ruleset"))
		}
	}
}

// service returns a Service of type NodePort and its EndpointSlices.
func service(name string, port int32, ips, endpoints []string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: ips[0], ClusterIPs: ips,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster),
			Ports:                 []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: port}},
		},
	}
	var slices []*discoveryv1.EndpointSlice
	for i, endpoint := range endpoints {
		family, kind := corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4
		if strings.Contains(endpoint, ":") {
			family, kind = corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6
		}
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, family)
		slices = append(slices, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", name, i), Namespace: "default",
				Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: kind,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint}, NodeName: ptr.To("a"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(8080))}},
		})
	}
	return svc, slices
}

// host makes this namespace a node that forwards packets.
func host(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	testutil.Command(t, "mount -t tmpfs tmpfs /run")
	t.Cleanup(func() { testutil.Command(t, "umount /run") })
	testutil.Command(t, "ip link set lo up")
	testutil.Command(t, "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
}

func TestProxy(t *testing.T) {
	dual := config.Cluster{ClusterCIDR: []string{"10.42.0.0/16", "fd42::/48"}, ServiceCIDR: []string{"10.43.0.0/16", "fd43::/112"}}
	for _, test := range []struct {
		name    string
		cluster config.Cluster
		args    []string
	}{
		{"nftables", cluster, nil},
		{"nftables dual-stack", dual, nil},
		{"nftables by node range", cluster, []string{"detect-local-mode=NodeCIDR"}},
		{"iptables", cluster, []string{"proxy-mode=iptables"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			host(t)
			outside := newPlace(t, "eth0", "192.0.2.0/24", "2001:db8::/64")
			testutil.Command(t, "ip route add default via 192.0.2.2")
			testutil.Command(t, "ip route add default via 2001:db8::2")
			podA := newPlace(t, "poda", "10.42.0.0/28", "fd42::/80")
			podB := newPlace(t, "podb", "10.42.0.16/28", "fd42:0:0:0:1::/80")
			podA.serve(t, ":8080", "a")

			ips, endpoints := []string{"10.43.0.50"}, []string{"10.42.0.2"}
			calls := map[string]string{"10.43.0.50:80": "a from 10.42.0.18"}
			if len(test.cluster.ServiceCIDR) == 2 {
				ips, endpoints = append(ips, "fd43::50"), append(endpoints, "fd42::2")
				calls["[fd43::50]:80"] = "a from fd42:0:0:0:1::2"
			}
			svc, slices := service("web", 30080, ips, endpoints)
			lonely, _ := service("lonely", 30081, []string{"10.43.0.51"}, nil)
			lonely.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
			client := fake.NewClientset(svc, lonely, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "a"},
				Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}},
			})
			for _, slice := range slices {
				if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}

			p, err := New(Config{
				NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
				Cluster: test.cluster, Args: test.args,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p.client, p.cfg.Informers = client, running(ctx, client)
			ready, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- p.Run(ctx, func() { close(ready) }) }()
			select {
			case <-ready:
			case err := <-ended:
				t.Fatalf("the proxy ended before it was ready: %v", err)
			}

			// When the proxy is ready, existing Services work.
			check := func() {
				t.Helper()
				for address, want := range calls {
					if got, err := podB.call(t, address); err != nil || netip.MustParseAddr(got[strings.LastIndex(got, " ")+1:]) != netip.MustParseAddr(want[strings.LastIndex(want, " ")+1:]) {
						t.Errorf("a pod calls %s: got %q (%v), want %q", address, got, err, want)
					}
				}
				if got, err := call("10.43.0.50:80"); err != nil || !strings.HasPrefix(got, "a from ") {
					t.Errorf("the host calls the Service: got %q (%v)", got, err)
				}
				// Traffic from outside gets the node's address, so that answers come back through
				// this node.
				if got, err := outside.call(t, "192.0.2.1:30080"); err != nil || got != "a from 10.42.0.1" {
					t.Errorf("outside calls the NodePort: got %q (%v)", got, err)
				}
				if got, err := call("192.0.2.1:30080"); err != nil || !strings.HasPrefix(got, "a from ") {
					t.Errorf("the host calls the NodePort: got %q (%v)", got, err)
				}
				// A pod can reach itself through its Service.
				if got, err := podA.call(t, "10.43.0.50:80"); err != nil || got != "a from 10.42.0.1" {
					t.Errorf("a pod calls itself: got %q (%v)", got, err)
				}
				if got, err := podB.call(t, "10.43.0.51:80"); err == nil {
					t.Errorf("a Service without endpoints answered %q", got)
				}
			}
			check()
			response, err := http.Get("http://" + healthAddress + "/healthz")
			if err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("health: got %v (%v)", response, err)
			} else {
				response.Body.Close()
			}

			// The endpoint moves to the other pod.
			podB.serve(t, ":8080", "b")
			moved := slices[0].DeepCopy()
			moved.Endpoints[0].Addresses = []string{"10.42.0.18"}
			if _, err := client.DiscoveryV1().EndpointSlices("default").Update(ctx, moved, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the endpoint's move", func() bool {
				got, err := outside.call(t, "192.0.2.1:30080")
				return err == nil && strings.HasPrefix(got, "b from ")
			})
			if _, err := client.DiscoveryV1().EndpointSlices("default").Update(ctx, slices[0], metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the endpoint's return", func() bool {
				got, err := outside.call(t, "192.0.2.1:30080")
				return err == nil && strings.HasPrefix(got, "a from ")
			})

			cancel()
			if err := <-ended; err != nil {
				t.Errorf("a cancelled proxy returned %v", err)
			}
			if listener, err := net.Listen("tcp", healthAddress); err != nil {
				t.Errorf("the health port is still taken: %v", err)
			} else {
				listener.Close()
			}
			check() // pods keep running

			if err := Cleanup(context.Background()); err != nil {
				t.Errorf("clean up: %v", err)
			}
			for _, line := range strings.Split(testutil.Command(t, "nft list ruleset"), "\n") {
				if strings.Contains(line, "KUBE") || strings.Contains(line, "kube-proxy") {
					t.Errorf("clean-up left %s", line)
				}
			}
			if got, err := podB.call(t, "10.43.0.50:80"); err == nil {
				t.Errorf("after the clean-up: got answer %q from the Service, want none", got)
			}
			testutil.Command(t, "nft flush ruleset")
		})
	}
}
