package essential

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/controlplane/inprocess"
)

// closed is a plugin that refuses every write, as a webhook does that nobody answers.
type closed struct{ asked int }

func (*closed) Handles(admission.Operation) bool { return true }

func (c *closed) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.asked++
	return errors.New("failed calling webhook")
}

func (c *closed) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return c.Admit(ctx, a, o)
}

// audiences are those of the API, which a user may have set.
var audiences = []string{"https://kubernetes.default.svc.cluster.local", "https://issuer.example.com"}

// write is a request that the plugins are asked about.
type write struct {
	who         *user.DefaultInfo
	local       bool // from this process
	operation   admission.Operation
	resource    schema.GroupResource
	subresource string
	namespace   string
	name        string
	object, old runtime.Object
}

// passes tells whether a write is admitted although everything refuses.
func (w *write) passes(t *testing.T) bool {
	t.Helper()
	ctx := t.Context()
	if w.local {
		ctx = contextOf(t, w.who.Name)
	}
	a := admission.NewAttributesRecord(w.object, w.old, schema.GroupVersionKind{}, w.namespace, w.name, w.resource.WithVersion("v1"), w.subresource, w.operation, nil, false, w.who)
	options := genericoptions.NewAdmissionOptions()
	Use(options, audiences)
	var answers []bool
	for _, name := range plugins {
		plugin := options.Decorators.Decorate(&closed{}, name)
		answers = append(answers,
			plugin.(admission.MutationInterface).Admit(ctx, a, nil) == nil,
			plugin.(admission.ValidationInterface).Validate(ctx, a, nil) == nil)
	}
	for _, answer := range answers {
		if answer != answers[0] {
			t.Errorf("plugins and phases differ: %v", answers)
		}
	}
	return answers[0]
}

// contextOf returns the context of a request by a user of this process.
func contextOf(t *testing.T, name string) (ctx context.Context) {
	t.Helper()
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { ctx = context.WithoutCancel(r.Context()) })
	response, err := (&http.Client{Transport: inprocess.NewTransport(handler, name)}).Get("http://api/")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return ctx
}

func named(name string) *user.DefaultInfo { return &user.DefaultInfo{Name: name} }

var (
	kubelet = &user.DefaultInfo{Name: "system:node:a", Groups: []string{"system:nodes", "kedge:node:a"}}
	fabric  = &user.DefaultInfo{Name: "system:kedge:flannel", Groups: []string{"kedge:node:a"}}
)

// status returns a kubelet's update of the status of its Node, which change changes.
func status(who *user.DefaultInfo, change func(*core.Node)) write {
	before := &core.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"tier": "edge"}, ResourceVersion: "1"},
		Spec:       core.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}},
		Status: core.NodeStatus{
			Addresses: []core.NodeAddress{{Type: core.NodeInternalIP, Address: "192.0.2.1"}, {Type: core.NodeHostName, Address: "a"}},
			Capacity:  core.ResourceList{"memory": resource.MustParse("1Gi"), "example.com/gpu": resource.MustParse("1")},
		},
	}
	now := before.DeepCopy()
	now.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	change(now)
	return write{who: who, operation: admission.Update, resource: nodes, subresource: "status", name: "a", object: now, old: before}
}

// podStatus is status for a pod.
func podStatus(change func(*core.Pod)) write {
	before := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: core.PodSpec{NodeName: "a"}}
	now := before.DeepCopy()
	change(now)
	return write{who: kubelet, operation: admission.Update, resource: pods, subresource: "status", namespace: "shop", name: "web", object: now, old: before}
}

// token returns a kubelet's request for a token of a pod, which change changes.
func token(change func(*authentication.TokenRequestSpec)) write {
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
		ExpirationSeconds: 3607, BoundObjectRef: &authentication.BoundObjectReference{Kind: "Pod", Name: "web"},
	}}
	change(&request.Spec)
	return write{who: kubelet, operation: admission.Create, resource: serviceAccounts, subresource: "token", namespace: "shop", name: "default", object: request}
}

// secret returns a write of a Secret in kube-system.
func secret(who *user.DefaultInfo, kind core.SecretType) write {
	return write{who: who, operation: admission.Update, resource: secrets, namespace: "kube-system", object: &core.Secret{Type: kind}, old: &core.Secret{Type: kind}}
}

// TestEssential wants what a start needs to pass by plugins that refuse everything, and
// nothing else: above all, what a captured node or a user of the cluster writes.
func TestEssential(t *testing.T) {
	local := func(name string, w write) write {
		w.who, w.local = named(name), true
		return w
	}
	create := func(resource schema.GroupResource, namespace, name string) write {
		return write{operation: admission.Create, resource: resource, namespace: namespace, name: name}
	}
	as := func(who *user.DefaultInfo, w write) write {
		w.who = who
		return w
	}
	crds := schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	configMaps := schema.GroupResource{Resource: "configmaps"}
	taint := create(nodes, "", "a")
	taint.operation = admission.Update
	removed := create(leases, "kube-node-lease", "a")
	removed.operation = admission.Delete
	for name, test := range map[string]struct {
		write
		passes bool
	}{
		"the API server itself":           {local("system:apiserver", create(crds, "", "x")), true},
		"add-ons":                         {local("system:kedge:bootstrap", create(serviceAccounts, "kube-system", "x")), true},
		"a registration":                  {local("system:kedge:supervisor", secret(nil, registration.SecretType)), true},
		"the lease of the election":       {local("system:kedge:election", create(leases, "kube-system", "kedge")), true},
		"endpoints of the cluster's DNS":  {local("system:kedge:dns-endpoints", create(endpointSlices, "kube-system", "kube-dns-a")), true},
		"the labels of a server's node":   {local("system:kedge:node-role", taint), true},
		"the record of a snapshot":        {local("system:kedge:snapshots", create(snapshots, "", "x")), true},
		"a server's new Node":             {local("system:node:a", create(nodes, "", "a")), true},
		"a server's Node":                 {local("system:node:a", taint), true},
		"the status of a pod on a server": {local("system:node:a", podStatus(func(*core.Pod) {})), true},
		"the token of a server's pod":     {local("system:node:a", token(func(*authentication.TokenRequestSpec) {})), true},
		"a taint by a controller":         {local("system:serviceaccount:kube-system:node-controller", taint), true},
		"endpoints by a controller":       {local("system:serviceaccount:kube-system:endpointslice-controller", create(endpointSlices, "shop", "web-1")), true},
		"an agent's sign of life":         {as(kubelet, create(leases, "kube-node-lease", "a")), true},
		"an agent's drivers":              {as(kubelet, create(csiNodes, "", "a")), true},
		"an agent's health":               {status(kubelet, func(n *core.Node) { n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady}} }), true},
		"an agent's new address":          {status(kubelet, func(n *core.Node) { n.Status.Addresses[0].Address = "192.0.2.2" }), true},
		"an agent's memory":               {status(kubelet, func(n *core.Node) { n.Status.Capacity["memory"] = resource.MustParse("2Gi") }), true},
		"an agent with fewer devices":     {status(kubelet, func(n *core.Node) { n.Status.Capacity["example.com/gpu"] = resource.MustParse("0") }), true},
		"an agent's end of the tunnels": {status(fabric, func(n *core.Node) {
			n.Annotations = map[string]string{"flannel.alpha.coreos.com/public-ip": "192.0.2.1"}
		}), true},
		"the status of an agent's pod":     {podStatus(func(p *core.Pod) { p.Status.Phase = core.PodRunning }), true},
		"the token of an agent's pod":      {token(func(*authentication.TokenRequestSpec) {}), true},
		"the same token, later":            {token(func(s *authentication.TokenRequestSpec) { s.Audiences = audiences }), true},
		"a registration by another server": {secret(named("system:kedge:supervisor"), registration.SecretType), true},

		"manifests of the user":                    {local("system:kedge:manifests", create(configMaps, "kube-system", "x")), false},
		"a chart of the user":                      {local("system:kedge:helm", create(configMaps, "kube-system", "x")), false},
		"the front of a user's Gateway":            {local("system:kedge:gateway-controller", create(schema.GroupResource{Resource: "services"}, "shop", "x")), false},
		"a pod by a controller":                    {local("system:serviceaccount:kube-system:replicaset-controller", create(pods, "shop", "x")), false},
		"a Secret by a controller":                 {local("system:serviceaccount:kube-system:x", create(secrets, "kube-system", "x")), false},
		"a server's static pod":                    {local("system:node:a", create(pods, "shop", "x")), false},
		"the scheduler":                            {local("system:kube-scheduler", write{operation: admission.Create, resource: pods, subresource: "binding"}), false},
		"somebody with the name of a part":         {as(named("system:kedge:bootstrap"), create(configMaps, "kube-system", "x")), false},
		"somebody with the name of the API server": {as(named("system:apiserver"), create(crds, "", "x")), false},
		"somebody with the name of a controller":   {as(named("system:serviceaccount:kube-system:node-controller"), taint), false},
		"another Secret by another server":         {secret(named("system:kedge:supervisor"), core.SecretTypeOpaque), false},
		"an administrator's Node":                  {as(named("admin"), taint), false},
		"an administrator's Lease":                 {as(named("admin"), create(leases, "kube-node-lease", "a")), false},
		"an agent's new Node":                      {as(kubelet, create(nodes, "", "a")), false},
		"an agent's taints":                        {as(kubelet, taint), false},
		"an agent's label":                         {status(kubelet, func(n *core.Node) { n.Labels["tier"] = "core" }), false},
		"an agent's annotation":                    {status(kubelet, func(n *core.Node) { n.Annotations = map[string]string{"x": "y"} }), false},
		"an agent's finalizer":                     {status(kubelet, func(n *core.Node) { n.Finalizers = []string{"x/y"} }), false},
		"an agent's spec":                          {status(kubelet, func(n *core.Node) { n.Spec.PodCIDRs = []string{"10.42.1.0/24"} }), false},
		"an agent's other name":                    {status(kubelet, func(n *core.Node) { n.Status.Addresses[1].Address = "b" }), false},
		"an agent with more devices":               {status(kubelet, func(n *core.Node) { n.Status.Capacity["example.com/gpu"] = resource.MustParse("2") }), false},
		"an agent with new devices":                {status(kubelet, func(n *core.Node) { n.Status.Allocatable = core.ResourceList{"example.com/x": resource.MustParse("1")} }), false},
		"another node's health":                    {as(&user.DefaultInfo{Name: "system:node:b", Groups: []string{"system:nodes"}}, status(nil, func(*core.Node) {})), false},
		"another node's sign of life":              {as(kubelet, create(leases, "kube-node-lease", "b")), false},
		"another namespace's Lease":                {as(kubelet, create(leases, "kube-system", "a")), false},
		"the end of a sign of life":                {as(kubelet, removed), false},
		"a kubelet that is in no group of nodes":   {as(named("system:node:a"), create(leases, "kube-node-lease", "a")), false},
		"flannel's other annotation":               {status(fabric, func(n *core.Node) { n.Annotations = map[string]string{"x": "y"} }), false},
		"flannel's status":                         {status(fabric, func(n *core.Node) { n.Status.Conditions = []core.NodeCondition{{}} }), false},
		"flannel of another node":                  {status(&user.DefaultInfo{Name: "system:kedge:flannel", Groups: []string{"kedge:node:b"}}, func(*core.Node) {}), false},
		"an agent's static pod":                    {as(kubelet, create(pods, "shop", "x")), false},
		"the label of an agent's pod":              {podStatus(func(p *core.Pod) { p.Labels = map[string]string{"app": "db"} }), false},
		"the annotation of an agent's pod":         {podStatus(func(p *core.Pod) { p.Annotations = map[string]string{"app": "db"} }), false},
		"a token for somebody else":                {token(func(s *authentication.TokenRequestSpec) { s.Audiences = []string{"vault"} }), false},
		"a server's token for somebody else":       {local("system:node:a", token(func(s *authentication.TokenRequestSpec) { s.Audiences = []string{"vault"} })), false},
		"a server's token for a year":              {local("system:node:a", token(func(s *authentication.TokenRequestSpec) { s.ExpirationSeconds = 365 * 24 * 3600 })), false},
		"a token also for somebody else":           {token(func(s *authentication.TokenRequestSpec) { s.Audiences = append(slices.Clone(audiences), "vault") }), false},
		"a token without a pod":                    {token(func(s *authentication.TokenRequestSpec) { s.BoundObjectRef = nil }), false},
		"a token for a year":                       {token(func(s *authentication.TokenRequestSpec) { s.ExpirationSeconds = 365 * 24 * 3600 }), false},
	} {
		t.Run(name, func(t *testing.T) {
			if passes := test.passes; test.write.passes(t) != passes {
				t.Errorf("it passes: %t", !passes)
			}
		})
	}
}

// TestImpersonation wants a caller in this process that acts for a user to have only the
// user's rights.
func TestImpersonation(t *testing.T) {
	w := write{who: named("system:apiserver"), operation: admission.Create, resource: secrets}
	a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "shop", "x", w.resource.WithVersion("v1"), "", w.operation, nil, false, named("tenant"))
	plugin := decorate(&closed{}, plugins[0], audiences).(admission.MutationInterface)
	if plugin.Admit(contextOf(t, "system:apiserver"), a, nil) == nil {
		t.Error("a user for whom the API server acts passes")
	}
}

// TestNewNode wants webhooks to be asked about the Node of a server, because they may add
// labels to it. Plugins that are not about users' rules are always asked.
func TestNewNode(t *testing.T) {
	a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "a", nodes.WithVersion("v1"), "", admission.Create, nil, false, named("system:node:a"))
	ctx := contextOf(t, "system:node:a")
	asked := &closed{}
	if err := decorate(asked, plugins[0], audiences).(admission.MutationInterface).Admit(ctx, a, nil); err != nil || asked.asked != 1 {
		t.Errorf("got %v, and %d questions, want one", err, asked.asked)
	}
	if other := decorate(asked, "NodeRestriction", audiences); other != admission.Interface(asked) {
		t.Error("a plugin of upstream's is passed by")
	}
}
