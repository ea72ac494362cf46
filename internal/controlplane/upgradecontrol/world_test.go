package upgradecontrol

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
)

const (
	old, target = "v1.37.2+kedge.1", "v1.37.3+kedge.1"
	digest      = "0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
)

// began is when tests begin.
var began = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	logrus.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// cluster is an API with nodes that do what Plans order, one step at a time. Nothing is kept
// between the steps except the objects of the API.
type cluster struct {
	*testing.T
	api    *fake.Clientset
	custom *dynamicfake.FakeDynamicClient
	events *record.FakeRecorder
	now    time.Time
	ids    int
	// own is the node of the server that leads.
	own string
	// ask answers the questions about Plans.
	ask func(question) answer
	// answer is what a node tells next about an order, which it has told about as before.
	answer func(node string, order upgrades.Order, before upgrades.Report) upgrades.Report
	// kept says that pods have a PodDisruptionBudget.
	kept bool
	// trace has the nodes that were under way after each step, without repetitions.
	trace []string
}

// newCluster makes a cluster of nodes such as s1:server, e:etcd and a:agent. Each has the old
// version and is Ready.
func newCluster(t *testing.T, nodes string) *cluster {
	t.Helper()
	c := &cluster{
		T: t, api: fake.NewClientset(), events: record.NewFakeRecorder(1000), now: began,
		custom: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{upgrades.Plans: "PlanList"}),
		ask: func(q question) answer {
			if q.version == "" {
				return answer{done: true, version: target}
			}
			executables := map[string]upgrades.Executable{}
			for _, architecture := range q.architectures {
				executables[architecture] = upgrades.Executable{SHA256: digest, Size: 9}
			}
			return answer{done: true, executables: executables}
		},
		answer: obey,
	}
	// As the API server does. The fake one accepts everything.
	c.custom.PrependReactor("update", "plans", func(action clienttesting.Action) (bool, runtime.Object, error) {
		update := action.(clienttesting.UpdateAction)
		if update.GetSubresource() != "status" {
			return false, nil, nil
		}
		object := update.GetObject().(*unstructured.Unstructured)
		live, err := c.custom.Tracker().Get(upgrades.Plans, "", object.GetName())
		if err != nil {
			return true, nil, err
		}
		if version := live.(*unstructured.Unstructured).GetResourceVersion(); version != object.GetResourceVersion() {
			return true, nil, apierrors.NewConflict(upgrades.Plans.GroupResource(), object.GetName(), fmt.Errorf("it has version %s", version))
		}
		object = object.DeepCopy()
		object.SetResourceVersion(object.GetResourceVersion() + "1")
		return true, object, c.custom.Tracker().Update(upgrades.Plans, object, "")
	})
	c.api.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateAction)
		eviction, is := create.GetObject().(*policyv1.Eviction)
		if !is {
			return false, nil, nil
		}
		if c.kept {
			return true, nil, apierrors.NewTooManyRequests("a budget", 1)
		}
		return true, nil, c.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), eviction.Namespace, eviction.Name)
	})
	c.api.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		node, one := action.(clienttesting.ListAction).GetListRestrictions().Fields.RequiresExactMatch("spec.nodeName")
		list, err := c.api.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithKind("Pod"), "")
		if pods, is := list.(*corev1.PodList); is && one {
			pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != node })
		}
		return true, list, err
	})
	for _, text := range strings.Fields(nodes) {
		name, role, _ := strings.Cut(text, ":")
		c.join(name, role)
	}
	return c
}

// obey is what a node tells that does what it is ordered.
func obey(_ string, order upgrades.Order, before upgrades.Report) upgrades.Report {
	next := map[upgrades.Stage]upgrades.Stage{upgrades.Fetching: upgrades.Trying, upgrades.Trying: upgrades.Upgraded, upgrades.Upgraded: upgrades.Upgraded}
	if before.ID != order.ID {
		return upgrades.Report{ID: order.ID, Stage: upgrades.Fetching}
	}
	return upgrades.Report{ID: order.ID, Stage: next[before.Stage]}
}

// join adds a node to the cluster.
func (c *cluster) join(name, role string) {
	c.Helper()
	labels := map[string]map[string]string{
		"server": {"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"},
		"etcd":   {"node-role.kubernetes.io/etcd": "true"},
	}[role]
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}, ResourceVersion: "1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: old, Architecture: "amd64"},
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "address-of-" + name}},
	}}
	maps.Copy(node.Labels, labels)
	if _, err := c.api.CoreV1().Nodes().Create(c.Context(), node, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// node changes a Node.
func (c *cluster) node(name string, change func(*corev1.Node)) {
	c.Helper()
	node, err := c.api.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	change(node)
	if _, err := c.api.CoreV1().Nodes().Update(c.Context(), node, metav1.UpdateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// setReady makes a node Ready or not.
func setReady(ready bool) func(*corev1.Node) {
	return func(n *corev1.Node) {
		if n.Status.Conditions[0].Status = corev1.ConditionFalse; ready {
			n.Status.Conditions[0].Status = corev1.ConditionTrue
		}
	}
}

// remove deletes a node.
func (c *cluster) remove(name string) {
	c.Helper()
	if err := c.api.CoreV1().Nodes().Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

// plan makes a Plan.
func (c *cluster) plan(name string, spec upgrades.PlanSpec) {
	c.Helper()
	c.put(&upgrades.Plan{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, ResourceVersion: "1", CreationTimestamp: metav1.NewTime(c.now)},
		Spec:       spec,
	}, true)
}

// change changes the spec of a Plan.
func (c *cluster) change(name string, change func(*upgrades.PlanSpec)) {
	c.Helper()
	plan := c.get(name)
	change(&plan.Spec)
	plan.Generation++
	c.put(plan, false)
}

func (c *cluster) put(plan *upgrades.Plan, create bool) {
	c.Helper()
	plan.APIVersion, plan.Kind = upgrades.Plans.GroupVersion().String(), "Plan"
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(plan)
	if err != nil {
		c.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: fields}
	if create {
		err = c.custom.Tracker().Create(upgrades.Plans, object, "")
	} else {
		err = c.custom.Tracker().Update(upgrades.Plans, object, "")
	}
	if err != nil {
		c.Fatal(err)
	}
}

// plans returns the Plans as the API has them.
func (c *cluster) plans() []*upgrades.Plan {
	c.Helper()
	list, err := c.custom.Resource(upgrades.Plans).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	var objects []any
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	return (&Plans{log: logrus.NewEntry(logrus.StandardLogger())}).read(objects)
}

func (c *cluster) get(name string) *upgrades.Plan {
	c.Helper()
	for _, plan := range c.plans() {
		if plan.Name == name {
			return plan
		}
	}
	c.Fatalf("there is no Plan %s", name)
	return nil
}

// lead returns the controller of a server that begins to lead.
func (c *cluster) lead() *term {
	c.Helper()
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	list, err := c.api.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for i := range list.Items {
		if err := nodes.Add(&list.Items[i]); err != nil {
			c.Fatal(err)
		}
	}
	known := New(Config{Store: store.New(store.Config{Folder: c.TempDir()})})
	t := newTerm(ControllerConfig{Plans: known, Node: c.own}, logrus.NewEntry(logrus.StandardLogger()), c.api, c.custom, c.events)
	t.nodes = corelisters.NewNodeLister(nodes)
	t.servers = func() []string { return nil }
	t.now = func() time.Time { return c.now }
	t.newID = func() string { c.ids++; return fmt.Sprintf("order-%d", c.ids) }
	t.ask = func(_ context.Context, q question) answer { return c.ask(q) }
	return t
}

// step lets a server that begins to lead do one step, and then each node. A second passes.
func (c *cluster) step() {
	c.Helper()
	if _, err := c.lead().sync(c.Context(), c.plans()); err != nil {
		c.Error(err)
	}
	c.note()
	c.act()
	c.now = c.now.Add(time.Second)
}

// note adds what is under way to the trace, and checks that it may be.
func (c *cluster) note() {
	c.Helper()
	var all []string
	for _, plan := range c.plans() {
		for _, n := range underWay(&plan.Status) {
			all = append(all, n.Name)
		}
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		c.Errorf("two Plans have begun with a node: %v", all)
	}
	if text := strings.Join(all, "+"); text != "" && (len(c.trace) == 0 || c.trace[len(c.trace)-1] != text) {
		c.trace = append(c.trace, text)
	}
}

// act lets each node do what it is ordered.
func (c *cluster) act() {
	c.Helper()
	list, err := c.api.CoreV1().Nodes().List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	for _, n := range list.Items {
		order := orderOf(c.plans(), n.Name)
		if order == (upgrades.Order{}) {
			continue
		}
		if err := order.Check(); err != nil {
			c.Errorf("node %s is told %v: %v", n.Name, order, err)
		}
		before, _ := upgrades.ParseReport(n.Annotations[upgrades.ReportAnnotation])
		report := c.answer(n.Name, order, before)
		c.node(n.Name, func(n *corev1.Node) {
			if report == (upgrades.Report{}) {
				return
			}
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, upgrades.ReportAnnotation, upgrades.FormatReport(report))
			if report.Stage == upgrades.Trying || report.Stage == upgrades.Upgraded {
				n.Status.NodeInfo.KubeletVersion = order.Version
			}
			if report.Stage == upgrades.Failed {
				n.Status.NodeInfo.KubeletVersion = old
			}
		})
	}
}

// until steps until a Plan is in a phase.
func (c *cluster) until(name string, phase upgrades.Phase) *upgrades.Plan {
	c.Helper()
	c.steps(string(phase), func() bool {
		plan := c.get(name)
		return plan.Status.Phase == phase && plan.Status.ObservedGeneration == plan.Generation
	})
	return c.get(name)
}

// steps steps until something has happened.
func (c *cluster) steps(what string, happened func() bool) {
	c.Helper()
	for range 100 {
		if happened() {
			return
		}
		c.step()
	}
	for _, plan := range c.plans() {
		c.Logf("Plan %s is %s (%s) with %+v", plan.Name, plan.Status.Phase, plan.Status.Message, plan.Status.Nodes)
	}
	c.Fatalf("it does not come to %s", what)
}

// reaches steps until the states of the nodes of a Plan have a text in them.
func (c *cluster) reaches(name, text string) {
	c.Helper()
	c.steps(text, func() bool { return strings.Contains(states(c.get(name)), text) })
}

// states returns the states of the nodes of a Plan as text.
func states(plan *upgrades.Plan) string {
	var all []string
	for _, n := range plan.Status.Nodes {
		all = append(all, n.Name+":"+string(n.State))
	}
	return strings.Join(all, " ")
}

// has fails unless a text has another one in it.
func (c *cluster) has(text, want string) {
	c.Helper()
	if !strings.Contains(text, want) {
		c.Errorf("got %q, want %q", text, want)
	}
}
