package loadbalancercontrol

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
)

// harness runs a term or a deputy over fake clients.
type harness struct {
	*testing.T
	api    *fake.Clientset
	pools  *dynamicfake.FakeDynamicClient
	events *record.FakeRecorder
	// log has what a term of run logs.
	log *logrustest.Hook
	mu  sync.Mutex
	// silent are the nodes that do not answer, and asked is how often nodes were asked.
	silent []string
	asked  int
	// overdue is whether the elected server seems to be gone, and away whether the API is.
	overdue, away bool
}

// run runs do beside a term, in a bubble of synctest.
func run(t *testing.T, do func(h *harness), objects ...runtime.Object) {
	t.Helper()
	beside(t, func(h *harness, cfg Config, factory informers.SharedInformerFactory) func(context.Context) {
		var log *logrus.Logger
		log, h.log = logrustest.NewNullLogger()
		controller, err := newTerm(cfg, newLiveness(cfg), h.api, h.pools, factory, h.events, logrus.NewEntry(log))
		if err != nil {
			t.Fatal(err)
		}
		return controller.run
	}, do, objects...)
}

// beside runs do beside what start returns, in a bubble of synctest.
func beside(t *testing.T, start func(*harness, Config, informers.SharedInformerFactory) func(context.Context), do func(h *harness), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := &harness{
			T: t, api: fake.NewClientset(objects...), events: record.NewFakeRecorder(100),
			pools: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{PoolResource: "LoadBalancerPoolList"}),
		}
		factory := informers.NewSharedInformerFactory(h.api, 0)
		cfg := Config{
			Cluster: config.Default().Cluster, Node: "node-1",
			// Node N is registered with 192.0.2.N.
			Owner: func(address netip.Addr) (string, bool) {
				number, registered := strings.CutPrefix(address.String(), "192.0.2.")
				return "node-" + number, registered
			},
			Answers: func(_ context.Context, node string) (bool, bool) {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.asked++
				return !slices.Contains(h.silent, node), node != "node-3"
			},
			Overdue: func(context.Context) (bool, error) {
				h.mu.Lock()
				defer h.mu.Unlock()
				if h.away {
					return false, context.DeadlineExceeded
				}
				return h.overdue, nil
			},
		}
		work := start(h, cfg, factory)
		factory.StartWithContext(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			work(ctx)
		}()
		time.Sleep(time.Second) // cache.WaitForCacheSync looks from time to time
		synctest.Wait()
		do(h)
		cancel()
		<-ended
		factory.Shutdown()
		synctest.Wait()
	})
}

// silence makes some nodes silent, and the others not.
func (h *harness) silence(nodes ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = nodes
}

// lose makes the elected server seem to be gone, or the API be away, or not.
func (h *harness) lose(gone, away bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.overdue, h.away = gone, away
}

// object makes a Node as a kubelet writes it.
func object(name, address string, ports string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{servicelb.PortsAnnotation: ports}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// want waits for the addresses of a Service. after is the time that may pass.
func (h *harness) want(name string, after time.Duration, addresses ...string) *corev1.Service {
	h.Helper()
	time.Sleep(after)
	synctest.Wait()
	service, err := h.api.CoreV1().Services("default").Get(h.Context(), name, metav1.GetOptions{})
	if err != nil {
		h.Fatal(err)
	}
	var got []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		got = append(got, ingress.IP)
		mode := corev1.LoadBalancerIPModeVIP
		if strings.HasPrefix(ingress.IP, "192.0.2.") {
			mode = corev1.LoadBalancerIPModeProxy
		}
		if ingress.IPMode == nil || *ingress.IPMode != mode {
			h.Errorf("%s has the mode %v", ingress.IP, ingress.IPMode)
		}
	}
	if !slices.Equal(got, addresses) {
		h.Errorf("Service %s has the addresses %v, want %v", name, got, addresses)
	}
	return service
}

// told returns the Events so far.
func (h *harness) told() string {
	var all []string
	for {
		select {
		case event := <-h.events.Events:
			all = append(all, event)
		default:
			return strings.Join(all, "\n")
		}
	}
}

func (h *harness) update(object runtime.Object) {
	h.Helper()
	var err error
	switch object := object.(type) {
	case *corev1.Node:
		_, err = h.api.CoreV1().Nodes().Update(h.Context(), object, metav1.UpdateOptions{})
	case *corev1.Service:
		_, err = h.api.CoreV1().Services("default").Update(h.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		h.Fatal(err)
	}
}

func TestController(t *testing.T) {
	web := aService("web", 1)
	run(t, func(h *harness) {
		service := h.want("web", 0)
		if c := service.Status.Conditions; len(c) != 1 || c[0].Reason != reasonWaiting || c[0].Status != metav1.ConditionFalse {
			t.Errorf("before the nodes have looked the conditions are %+v", c)
		}

		t.Log("the nodes report")
		h.update(object("node-1", "192.0.2.1", `{"80/tcp":""}`))
		h.update(object("node-2", "192.0.2.2", `{"80/tcp":""}`))
		service = h.want("web", 0, "192.0.2.1", "192.0.2.2")
		if c := service.Status.Conditions; len(c) != 1 || c[0].Status != metav1.ConditionTrue || c[0].Reason != reasonAssigned {
			t.Errorf("the conditions are %+v", c)
		}
		if said := h.told(); !strings.Contains(said, reasonUpdated) {
			t.Errorf("the Events are %q", said)
		}

		t.Log("a node is silent for a moment, and then for good")
		h.silence("node-2")
		h.want("web", askInterval, "192.0.2.1", "192.0.2.2")
		h.silence()
		h.want("web", misses*askInterval, "192.0.2.1", "192.0.2.2")
		h.silence("node-1", "node-2") // node-1 is the controller's own
		h.want("web", misses*askInterval+askTimeout, "192.0.2.1")
		h.silence()
		h.want("web", askInterval, "192.0.2.1", "192.0.2.2")

		t.Log("a node that was never connected is not asked for more")
		h.update(object("node-3", "192.0.2.3", `{"80/tcp":""}`))
		h.silence("node-3")
		h.want("web", 10*askInterval, "192.0.2.1", "192.0.2.2", "192.0.2.3")

		t.Log("the Service is no longer of the type")
		now := service.DeepCopy()
		now.Spec.Type = corev1.ServiceTypeClusterIP
		h.update(now)
		if service := h.want("web", 0); len(service.Status.Conditions) > 0 {
			t.Errorf("the conditions are %+v", service.Status.Conditions)
		}
		asked := h.asked
		h.want("web", time.Hour)
		if h.asked != asked {
			t.Error("nodes are asked without a Service")
		}
	}, web, object("node-1", "192.0.2.1", ""), object("node-2", "192.0.2.2", ""), object("node-3", "192.0.2.3", ""))
}

func TestControllerWarnsOnce(t *testing.T) {
	run(t, func(h *harness) {
		h.want("old", 0, "192.0.2.1")
		h.want("young", time.Minute)
		said := h.told()
		if strings.Count(said, reasonConflict) != 1 || !strings.Contains(said, "default/old") {
			t.Errorf("the Events are %q", said)
		}
		if err := h.api.CoreV1().Services("default").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		h.want("young", 0, "192.0.2.1")
	}, aService("old", 2), aService("young", 1), object("node-1", "192.0.2.1", `{"80/tcp":""}`))
}

// TestControllerLeavesOthers has Services of others, which keep what others have written.
func TestControllerLeavesOthers(t *testing.T) {
	foreign := aService("foreign", 1, class("example.com/x"))
	foreign.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
	run(t, func(h *harness) {
		h.want("foreign", time.Minute, "203.0.113.1")
		for _, action := range h.api.Actions() {
			if action.GetVerb() != "get" && action.GetVerb() != "list" && action.GetVerb() != "watch" {
				t.Errorf("%s %s", action.GetVerb(), action.GetResource().Resource)
			}
		}
		if len(h.pools.Actions()) > 0 || h.asked > 0 {
			t.Error("pools are read, or nodes asked, without a Service")
		}
	}, foreign, object("node-1", "192.0.2.1", ""))
}

func TestControllerLocal(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		Endpoints:  []discoveryv1.Endpoint{{NodeName: new("node-2"), Addresses: []string{"10.42.0.2"}}},
	}
	run(t, func(h *harness) {
		h.want("web", 0, "192.0.2.2")
		moved := slice.DeepCopy()
		*moved.Endpoints[0].NodeName = "node-1"
		if _, err := h.api.DiscoveryV1().EndpointSlices("default").Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.want("web", 0, "192.0.2.1")
	}, slice, aService("web", 1, local), object("node-1", "192.0.2.1", `{"80/tcp":""}`), object("node-2", "192.0.2.2", `{"80/tcp":""}`))
}

func (h *harness) pool(name string, spec string) {
	h.Helper()
	p := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(`{"apiVersion": "kedge.dev/v1alpha1", "kind": "LoadBalancerPool", "metadata": {"name": "`+name+`"}, "spec": `+spec+`}`), p); err != nil {
		h.Fatal(err)
	}
	if _, err := h.pools.Resource(PoolResource).Create(h.Context(), p, metav1.CreateOptions{}); err != nil {
		h.Fatal(err)
	}
}

func TestControllerPools(t *testing.T) {
	run(t, func(h *harness) {
		if said := h.told(); !strings.Contains(said, "no LoadBalancerPool") {
			t.Errorf("without pools the Events are %q", said)
		}
		h.pool("lan", `{"addresses": ["198.51.100.1-198.51.100.9", "10.43.0.0/24"], "nodeSelector": {"matchLabels": {"edge": "yes"}}}`)
		h.want("web", 0)
		edge := object("node-2", "192.0.2.2", "")
		edge.Labels = map[string]string{"edge": "yes"}
		h.update(edge)
		h.want("web", 0, "198.51.100.1")
		name := servicelb.LeaseName(netip.MustParseAddr("198.51.100.1"))
		lease, err := h.api.CoordinationV1().Leases("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !servicelb.MayHold(lease.Annotations, "node-2") || servicelb.MayHold(lease.Annotations, "node-1") || lease.Annotations[servicelb.AddressOfLease] != "198.51.100.1" {
			t.Errorf("the Lease has %v", lease.Annotations)
		}

		t.Log("the Lease keeps the address while no node may announce it")
		h.update(object("node-2", "192.0.2.2", ""))
		h.want("web", 0)
		if lease, err = h.api.CoordinationV1().Leases("kube-system").Get(t.Context(), name, metav1.GetOptions{}); err != nil || servicelb.MayHold(lease.Annotations, "node-2") {
			t.Errorf("the Lease is %v: %v", lease, err)
		}

		t.Log("the Service goes")
		if err := h.api.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if list, err := h.api.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
			t.Errorf("there are %v: %v", list.Items, err)
		}
	}, aService("web", 1, class(servicelb.PoolClass)), object("node-1", "192.0.2.1", ""), object("node-2", "192.0.2.2", ""))
}

// TestControllerFails has an address whose Lease cannot be made for a while, and a Service that
// somebody changes all the time. Each costs the others nothing, and a conflict hides no fault.
func TestControllerFails(t *testing.T) {
	run(t, func(h *harness) {
		var fails atomic.Bool
		fails.Store(true)
		h.api.PrependReactor("create", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			lease := action.(clienttesting.CreateAction).GetObject().(*coordinationv1.Lease)
			return fails.Load() && lease.Annotations[servicelb.AddressOfLease] == "198.51.100.1", nil, apierrors.NewInternalError(errors.New("disk full"))
		})
		h.api.PrependReactor("patch", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
			changed := action.(clienttesting.PatchAction).GetName() == "changed"
			return fails.Load() && changed, nil, apierrors.NewConflict(schema.GroupResource{}, "changed", errors.New("newer"))
		})
		said := func() (all []string) {
			for _, entry := range h.log.AllEntries() {
				all = append(all, entry.Message)
			}
			h.log.Reset()
			return all
		}
		h.pool("lan", `{"addresses": ["198.51.100.1-198.51.100.9"]}`)
		h.update(object("node-1", "192.0.2.1", `{"80/tcp":""}`))
		h.want("first", time.Minute)
		h.want("second", 0, "198.51.100.2")
		h.want("changed", 0)
		if got := said(); len(got) != 1 || !strings.Contains(got[0], "make Lease of 198.51.100.1") || strings.Contains(got[0], "newer") {
			t.Errorf("the log has %q", got)
		}
		fails.Store(false)
		h.want("first", time.Minute, "198.51.100.1")
		h.want("changed", 0, "192.0.2.1")
		if got := said(); len(got) != 1 {
			t.Errorf("in the end the log has %q", got)
		}

		t.Log("what is wrong with pools is said once")
		h.pool("wrong", `{"addresses": ["nonsense"]}`)
		h.pool("bad", `{"addresses": ["10.43.0.0/24"]}`)
		synctest.Wait()
		said()
		h.update(object("node-1", "192.0.2.1", `{"80/tcp":"sshd"}`))
		h.want("changed", time.Minute)
		if got := said(); len(got) != 0 {
			t.Errorf("about the pools the log has %q", got)
		}
		if err := h.pools.Resource(PoolResource).Delete(t.Context(), "wrong", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := said(); len(got) != 1 || !strings.Contains(got[0], "LoadBalancerPool bad") || strings.Contains(got[0], "nonsense") {
			t.Errorf("with one wrong pool less the log has %q", got)
		}
	}, aService("first", 3, class(servicelb.PoolClass)), aService("second", 2, class(servicelb.PoolClass)), aService("changed", 1),
		object("node-1", "192.0.2.1", ""))
}

// TestControllerClaims has nodes that claim addresses of others.
func TestControllerClaims(t *testing.T) {
	thief := object("node-2", "192.0.2.1", `{"80/tcp":""}`)
	thief.Status.Addresses = append(thief.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "192.0.2.3"},
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "198.51.100.1"})
	run(t, func(h *harness) {
		h.want("web", 0, "192.0.2.3")
		t.Log("of an external address that nodes share, all must have confirmed the ports")
		for _, name := range []string{"node-2", "node-3"} {
			node := object(name, "192.0.2."+name[5:], `{"80/tcp":""}`)
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"})
			if name == "node-3" {
				node.Annotations = nil
			}
			h.update(node)
		}
		h.want("web", 0)
	}, aService("web", 1), thief, object("node-1", "192.0.2.1", `{"80/tcp":"sshd"}`), object("node-3", "192.0.2.3", `{"80/tcp":""}`))
}
