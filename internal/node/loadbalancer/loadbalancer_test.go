package loadbalancer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/node/announce"
)

// fakeHost records which addresses it has.
type fakeHost struct {
	mu        sync.Mutex
	addresses map[netip.Addr]bool
}

type fakePlace struct {
	*fakeHost
	address netip.Addr
}

func (h *fakeHost) Place(address netip.Addr) (announce.Place, error) {
	return fakePlace{h, address}, nil
}

func (p fakePlace) Put(time.Duration) error { return p.set(true) }
func (p fakePlace) Remove() error           { return p.set(false) }
func (fakePlace) Tell() error               { return nil }
func (fakePlace) String() string            { return "eth0" }

func (p fakePlace) set(here bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if here {
		p.addresses[p.address] = true
	} else {
		delete(p.addresses, p.address)
	}
	return nil
}

func (h *fakeHost) has() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var texts []string
	for address := range h.addresses {
		texts = append(texts, address.String())
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}

// rig runs the component of node a over a fake API.
type rig struct {
	*testing.T
	api  *fake.Clientset
	host *fakeHost
	mu   sync.Mutex
	// owners are who has which port, and asked is how often that was looked at.
	owners map[string]string
	asked  int
}

func run(t *testing.T, do func(r *rig), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := &rig{T: t, api: fake.NewClientset(objects...), host: &fakeHost{addresses: map[netip.Addr]bool{}}, owners: map[string]string{}}
		// The fake API has no versions, so that no update conflicts.
		versions := 0
		r.api.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
			current, err := r.api.Tracker().Get(action.GetResource(), lease.Namespace, lease.Name)
			if err != nil {
				return true, nil, err
			}
			if current.(*coordinationv1.Lease).ResourceVersion != lease.ResourceVersion {
				return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), lease.Name, errors.New("it is newer"))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			versions++
			written := lease.DeepCopy()
			written.ResourceVersion = fmt.Sprint(versions)
			return true, written, r.api.Tracker().Update(action.GetResource(), written, lease.Namespace)
		})
		component := &loadBalancer{
			cfg: Config{NodeName: "a", Informers: objectcache.Own(r.api)},
			log: logrus.WithField("component", "test"), api: r.api, host: r.host,
			owner: func(_ context.Context, port string) string {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.asked++
				return r.owners[port]
			},
		}
		ended := make(chan error, 1)
		go func() { ended <- component.Run(ctx, func() {}) }()
		r.settle(time.Second)
		do(r)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := r.host.has(); got != "" {
			t.Errorf("at the end the host has %s", got)
		}
	})
}

func (r *rig) settle(after time.Duration) {
	time.Sleep(after)
	synctest.Wait()
}

// report returns the annotation of the node. It is nil if the node has none.
func (r *rig) report() servicelb.Ports {
	r.Helper()
	node, err := r.api.CoreV1().Nodes().Get(r.Context(), "a", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	text, written := node.Annotations[servicelb.PortsAnnotation]
	if !written {
		return nil
	}
	var ports servicelb.Ports
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		r.Fatal(err)
	}
	return ports
}

func (r *rig) want(ports servicelb.Ports) {
	r.Helper()
	if got := r.report(); (got == nil) != (ports == nil) || !maps.Equal(got, ports) {
		r.Errorf("the node reports %v, want %v", got, ports)
	}
}

func aNode(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

func aService(name string, ports ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for _, port := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: port})
	}
	return s
}

// at gives a Service an address.
func at(service *corev1.Service, address string) *corev1.Service {
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	service.Status.Conditions = []metav1.Condition{{Type: servicelb.Condition}}
	return service
}

func TestPorts(t *testing.T) {
	run(t, func(r *rig) {
		r.want(nil)
		r.owners["8080/tcp"] = "nginx (process 7)"
		services := r.api.CoreV1().Services("default")
		web, err := services.Create(t.Context(), aService("web", 80, 8080), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r.settle(0)
		r.want(servicelb.Ports{"80/tcp": "", "8080/tcp": "nginx (process 7)"})

		t.Log("the process ends, and another one wants the port that the Service has")
		r.mu.Lock()
		r.owners = map[string]string{"80/tcp": "apache (process 8)"}
		r.mu.Unlock()
		r.settle(lookInterval)
		r.want(servicelb.Ports{"80/tcp": "", "8080/tcp": ""})
		asked := r.asked
		r.settle(time.Hour)
		if r.asked != asked {
			t.Error("ports that are free are looked at again")
		}

		t.Log("somebody removes the report")
		node := aNode("a", "192.0.2.1")
		if _, err := r.api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle(0)
		r.want(servicelb.Ports{"80/tcp": "apache (process 8)", "8080/tcp": ""})

		t.Log("the Service loses a port, and then goes")
		web = web.DeepCopy()
		web.Spec.Ports = web.Spec.Ports[1:]
		if _, err := services.Update(t.Context(), web, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle(0)
		r.want(servicelb.Ports{"8080/tcp": ""})
		if err := services.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle(0)
		r.want(nil)
	}, aNode("a", "192.0.2.1"), aNode("b", "192.0.2.2"))
}

// TestRest has no Service of the type: nothing is written, asked or watched.
func TestRest(t *testing.T) {
	other := aService("other", 80)
	other.Spec.Type = corev1.ServiceTypeNodePort
	run(t, func(r *rig) {
		r.settle(time.Hour)
		for _, action := range r.api.Actions() {
			if resource := action.GetResource().Resource; resource == "leases" || action.GetVerb() == "patch" {
				t.Errorf("%s %s", action.GetVerb(), resource)
			}
		}
		if r.asked > 0 {
			t.Error("ports are looked at")
		}
	}, aNode("a", "192.0.2.1"), other)
}

func aLease(address, nodes string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: servicelb.Namespace, Name: servicelb.LeaseName(netip.MustParseAddr(address)), Labels: map[string]string{servicelb.LeaseLabel: ""},
		Annotations: map[string]string{servicelb.AddressOfLease: address, servicelb.NodesOfLease: nodes},
	}}
}

func TestAnnouncing(t *testing.T) {
	run(t, func(r *rig) {
		r.settle(5 * time.Second)
		if got := r.host.has(); got != "198.51.100.1" {
			t.Fatalf("the host has %q", got)
		}
		leases := r.api.CoordinationV1().Leases(servicelb.Namespace)
		lease := func(address string) *coordinationv1.Lease {
			t.Helper()
			found, err := leases.Get(t.Context(), servicelb.LeaseName(netip.MustParseAddr(address)), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		if holder := lease("198.51.100.1").Spec.HolderIdentity; holder == nil || *holder != "a" {
			t.Errorf("the holder is %v", holder)
		}
		if holder := lease("198.51.100.2").Spec.HolderIdentity; holder != nil {
			t.Errorf("the Lease of another node has the holder %v", *holder)
		}

		t.Log("the node may hold another address now")
		for address, nodes := range map[string]string{"198.51.100.1": "b", "198.51.100.2": "b,a"} {
			changed := lease(address)
			changed.Annotations[servicelb.NodesOfLease] = nodes
			if _, err := leases.Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		r.settle(5 * time.Second)
		if got := r.host.has(); got != "198.51.100.2" {
			t.Errorf("the host has %q", got)
		}
		if holder := lease("198.51.100.1").Spec.HolderIdentity; holder == nil || *holder != "" {
			t.Errorf("the holder of the address that was given up is %v", holder)
		}

		t.Log("the Lease goes, and then the Service")
		if err := leases.Delete(t.Context(), lease("198.51.100.2").Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Second)
		if got := r.host.has(); got != "" {
			t.Errorf("the host has %q", got)
		}
		if _, err := r.api.CoreV1().Services("default").Update(t.Context(), at(aService("web", 80), "192.0.2.2"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Second)
		r.api.ClearActions()
		if _, err := leases.Create(t.Context(), aLease("198.51.100.3", "a"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		r.settle(time.Minute)
		if got := r.host.has(); got != "" {
			t.Errorf("without a Service with an address of a pool the host has %q", got)
		}
	}, aNode("a", "192.0.2.1"), aNode("b", "192.0.2.2"), at(aService("web", 80), "198.51.100.1"),
		aLease("198.51.100.1", "a,b"), aLease("198.51.100.2", "b"))
}

// TestTurn has each node be the first for about the same number of addresses.
func TestTurn(t *testing.T) {
	first := map[string]int{}
	for i := range 300 {
		lease := aLease(fmt.Sprintf("198.51.%d.%d", i/100, i%100), "a,b,c")
		turns := map[time.Duration]bool{}
		for _, node := range []string{"a", "b", "c"} {
			own := turn(lease, node)
			turns[own] = true
			if own == 0 {
				first[node]++
			}
		}
		if len(turns) != 3 {
			t.Fatalf("the turns for %s are %v", lease.Name, turns)
		}
	}
	for _, node := range []string{"a", "b", "c"} {
		if first[node] < 50 {
			t.Errorf("the nodes are the first %v times", first)
		}
	}
}

// TestOwnerOf looks at ports of this machine.
func TestOwnerOf(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := listener.Addr().(*net.TCPAddr).Port
	owner := ownerOf([]netip.Addr{loopback, netip.MustParseAddr("203.0.113.1")}, []host.Port{
		{Network: "tcp", Address: ":10250", Use: "the kubelet"}, {Network: "udp", Address: "192.0.2.1:53", Use: "DNS"},
	})
	for port, want := range map[string]string{
		"10250/tcp":                   "kedge (the kubelet)",
		"53/udp":                      "kedge (DNS)",
		fmt.Sprintf("%d/tcp", taken):  "process",
		fmt.Sprintf("%d/sctp", taken): "",
	} {
		if got := owner(t.Context(), port); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", port, got, want)
		}
	}
}
