package restriction

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/warning"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/servicelb"
	"github.com/kedge-dev/kedge/internal/controlplane/loadbalancercontrol"
)

var (
	admin     = &user.DefaultInfo{Name: "admin", Groups: []string{"everything"}}
	tenant    = &user.DefaultInfo{Name: "tenant"}
	scheduler = &user.DefaultInfo{Name: "own-scheduler", Groups: []string{"binders"}}
	storage   = &user.DefaultInfo{Name: "system:kedge:storage", Groups: []string{"kedge:node:a"}}
	flannel   = &user.DefaultInfo{Name: "system:kedge:flannel", Groups: []string{"kedge:node:a"}}
	kubelet   = &user.DefaultInfo{Name: "system:node:a", Groups: []string{"system:nodes", "kedge:node:a"}}
)

// rights are granted by group: all rights, or pods/binding or services/status in all namespaces.
type rights struct{}

func (rights) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	groups := a.GetUser().GetGroups()
	binds := a.GetVerb() == "create" && a.GetResource() == "pods" && a.GetSubresource() == "binding" && a.GetNamespace() == ""
	balances := a.GetVerb() == "patch" && a.GetResource() == "services" && a.GetSubresource() == "status" && a.GetNamespace() == ""
	if slices.Contains(groups, "everything") || slices.Contains(groups, "binders") && binds || slices.Contains(groups, "balancers") && balances {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// interfaces converts as the API server does.
type interfaces struct{ admission.ObjectInterfaces }

func (interfaces) GetObjectConvertor() runtime.ObjectConvertor { return scheme.Scheme }

// warnings are the warnings to the client.
type warnings struct{ texts []string }

func (w *warnings) AddWarning(_, text string) { w.texts = append(w.texts, text) }

// request is a request that the plugin checks.
type request struct {
	who         user.Info
	operation   admission.Operation
	resource    schema.GroupResource
	subresource string
	namespace   string
	object, old runtime.Object
}

// run has a plugin check a request in a cluster of objects.
func (r request) run(t *testing.T, unenforced bool, objects ...runtime.Object) (warned []string, err error) {
	t.Helper()
	pool := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kedge.dev/v1alpha1", "kind": "LoadBalancerPool", "metadata": map[string]any{"name": "lan"},
		"spec": map[string]any{"addresses": []any{"nonsense", "192.0.2.200-192.0.2.209", "2001:db8:1::/64"}},
	}}
	p := &plugin{
		cfg: Config{Unenforced: unenforced, VIP: netip.MustParseAddr("192.0.2.100"), Pods: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00:42:1::/56")}}, client: fake.NewClientset(objects...), authorizer: rights{},
		custom: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{loadbalancercontrol.PoolResource: "LoadBalancerPoolList"}, pool),
	}
	if err := p.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	said := &warnings{}
	ctx := warning.WithWarningRecorder(t.Context(), said)
	a := admission.NewAttributesRecord(r.object, r.old, schema.GroupVersionKind{}, r.namespace, "name", r.resource.WithVersion("v1"), r.subresource, r.operation, nil, false, r.who)
	if !p.Handles(r.operation) {
		t.Fatalf("%s is passed over", r.operation)
	}
	if err := p.Admit(ctx, a, interfaces{}); err != nil {
		return said.texts, err
	}
	return said.texts, p.Validate(ctx, a, interfaces{})
}

// TestRegister wants the plugin to be the last one, and to fail without its
// dependencies.
func TestRegister(t *testing.T) {
	options := genericoptions.NewAdmissionOptions()
	before := slices.Clone(options.RecommendedPluginOrder)
	Register(options, Config{})
	if want := append(before, Name); !slices.Equal(options.RecommendedPluginOrder, want) {
		t.Errorf("the order is %v", options.RecommendedPluginOrder)
	}
	if faults := options.Validate(); len(faults) > 0 {
		t.Error(faults)
	}
	if err := (&plugin{}).ValidateInitialization(); err == nil {
		t.Error("a plugin without a client is no fault")
	}
}

// TestIgnoreNode wants only schedulers to choose the node of a claim.
func TestIgnoreNode(t *testing.T) {
	claim := func(node string) runtime.Object {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Annotations: map[string]string{"kept": "yes"}}}
		if node != "" {
			claim.Annotations[nodeAnnotation] = node
		}
		return claim
	}
	for name, test := range map[string]struct {
		who         user.Info
		before, now string // before of "-" is a new claim
		want        string
	}{
		"an author":                   {tenant, "-", "a", ""},
		"an author, later":            {tenant, "", "a", ""},
		"an author, another":          {tenant, "b", "a", "b"},
		"an author, the same":         {tenant, "a", "a", "a"},
		"an author, none any more":    {tenant, "a", "", ""},
		"an administrator":            {admin, "-", "a", ""},
		"a StatefulSet":               {&user.DefaultInfo{Name: "system:serviceaccount:kube-system:statefulset-controller"}, "-", "a", ""},
		"a node, for another":         {storage, "a", "b", "a"},
		"a node, giving back":         {storage, "a", "", ""},
		"the scheduler":               {&user.DefaultInfo{Name: "system:kube-scheduler"}, "", "a", "a"},
		"kedge's controller":          {&user.DefaultInfo{Name: "system:kedge:storage-controller"}, "b", "a", "a"},
		"a scheduler of the user's":   {scheduler, "", "a", "a"},
		"a claim that asks for none":  {tenant, "-", "", ""},
		"a claim without annotations": {tenant, "-", "none", ""},
	} {
		r := request{who: test.who, operation: admission.Update, resource: claims, object: claim(test.now)}
		if test.now == "none" {
			test.now = ""
			r.object = &corev1.PersistentVolumeClaim{}
		}
		if test.before == "-" {
			r.operation, test.before = admission.Create, ""
		} else {
			r.old = claim(test.before)
		}
		for _, r.subresource = range []string{"", "status"} {
			warned, err := r.run(t, false)
			got := r.object.(*corev1.PersistentVolumeClaim).Annotations
			ignored := test.now != test.want
			switch {
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case got[nodeAnnotation] != test.want || len(got) > 0 && got["kept"] != "yes":
				t.Errorf("%s: the annotations are %v", name, got)
			case r.subresource == "" && ignored != (len(warned) == 1):
				t.Errorf("%s: warned of %q", name, warned)
			}
		}
	}
}

// TestClaimLabel wants the write that chooses the node of a claim to bring the label by which
// the node sees the claim, and nobody else but kedge's controller to change the label.
func TestClaimLabel(t *testing.T) {
	claim := func(node, label, class string) *corev1.PersistentVolumeClaim {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Labels: map[string]string{"kept": "yes"}, Annotations: map[string]string{}},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class},
		}
		if node != "" {
			claim.Annotations[nodeAnnotation] = node
		}
		if label != "-" {
			claim.Labels[localstorage.TopologyKey] = label
		}
		return claim
	}
	kube, ours := &user.DefaultInfo{Name: "system:kube-scheduler"}, &user.DefaultInfo{Name: "system:kedge:storage-controller"}
	local, k3s, other := "local", "local-path", "other"
	for name, test := range map[string]struct {
		who    user.Info
		before *corev1.PersistentVolumeClaim // nil for a new claim
		now    *corev1.PersistentVolumeClaim
		want   string // - for none
		warned int
	}{
		"the scheduler chooses":                {kube, claim("", "-", local), claim("a", "-", local), "a", 0},
		"it chooses anew":                      {kube, claim("b", "b", local), claim("a", "b", local), "a", 0},
		"it chooses after a lack of room":      {kube, claim("", "", local), claim("a", "", local), "a", 0},
		"it chooses for a class of k3s":        {kube, claim("", "-", k3s), claim("a", "-", k3s), "a", 0},
		"it chooses for another driver":        {kube, claim("", "-", other), claim("a", "-", other), "-", 0},
		"it chooses without a class":           {kube, claim("", "-", "none"), claim("a", "-", "none"), "-", 0},
		"a scheduler of the user's":            {scheduler, claim("", "-", local), claim("a", "-", local), "a", 0},
		"a scheduler that lies":                {scheduler, claim("", "-", local), claim("a", "b", local), "a", 1},
		"kedge's controller chooses":           {ours, claim("", "-", local), claim("a", "-", local), "a", 0},
		"kedge's controller tells all":         {ours, claim("", "-", local), claim("", "", local), "", 0},
		"kedge's controller, an older claim":   {ours, claim("a", "-", local), claim("a", "a", local), "a", 0},
		"an author, of a new claim":            {tenant, nil, claim("", "a", local), "-", 1},
		"an author, of a copy":                 {tenant, nil, claim("a", "a", local), "-", 2},
		"an author, later":                     {tenant, claim("a", "a", local), claim("a", "b", local), "a", 1},
		"an author, for all nodes":             {tenant, claim("a", "a", local), claim("a", "", local), "a", 1},
		"an author, who replaces":              {tenant, claim("a", "a", local), claim("a", "-", local), "a", 0},
		"an administrator":                     {admin, claim("a", "a", local), claim("a", "b", local), "a", 1},
		"a node, for another":                  {storage, claim("a", "a", local), claim("a", "b", local), "a", 1},
		"a node, giving back":                  {storage, claim("a", "a", local), claim("", "a", local), "a", 0},
		"a claim that nobody has a choice for": {tenant, nil, claim("", "-", local), "-", 0},
	} {
		for _, subresource := range []string{"", "status"} {
			r := request{who: test.who, operation: admission.Update, resource: claims, subresource: subresource, object: test.now.DeepCopy()}
			if test.before == nil {
				r.operation = admission.Create
			} else {
				r.old = test.before
			}
			provisioner := func(name, provisioner string) runtime.Object {
				return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
			}
			warned, err := r.run(t, false, provisioner(local, driver), provisioner(k3s, localstorage.K3sProvisioner), provisioner(other, "other.example"))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			labels := r.object.(*corev1.PersistentVolumeClaim).Labels
			got, labelled := labels[localstorage.TopologyKey]
			if !labelled {
				got = "-"
			}
			if got != test.want || labels["kept"] != "yes" || len(warned) != test.warned {
				t.Errorf("%s: the labels are %v, want %q, warned of %q", name, labels, test.want, warned)
			}
		}
	}
}

// TestCheckVolume wants a node to make volumes only for claims that chose it.
func TestCheckVolume(t *testing.T) {
	claim := func(change func(*corev1.PersistentVolumeClaim)) runtime.Object {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "c", UID: "1",
			Annotations: map[string]string{nodeAnnotation: "a", provisionerAnnotation: driver},
		}}
		change(claim)
		return claim
	}
	for name, test := range map[string]struct {
		who      user.Info
		volume   string
		uid      types.UID
		change   func(*corev1.PersistentVolumeClaim)
		accepted bool
	}{
		"its own":              {storage, "pvc-1", "1", func(*corev1.PersistentVolumeClaim) {}, true},
		"an administrator's":   {admin, "any", "", func(*corev1.PersistentVolumeClaim) {}, true},
		"by another name":      {storage, "pvc-2", "1", func(*corev1.PersistentVolumeClaim) {}, false},
		"without a UID":        {storage, "pvc-", "", func(*corev1.PersistentVolumeClaim) {}, false},
		"of a former claim":    {storage, "pvc-2", "2", func(*corev1.PersistentVolumeClaim) {}, false},
		"of no claim":          {storage, "pvc-1", "1", func(c *corev1.PersistentVolumeClaim) { c.Name = "other" }, false},
		"of another namespace": {storage, "pvc-1", "1", func(c *corev1.PersistentVolumeClaim) { c.Namespace = "other" }, false},
		"of another node":      {storage, "pvc-1", "1", func(c *corev1.PersistentVolumeClaim) { c.Annotations[nodeAnnotation] = "b" }, false},
		"of no node":           {storage, "pvc-1", "1", func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, nodeAnnotation) }, false},
		"of another driver":    {storage, "pvc-1", "1", func(c *corev1.PersistentVolumeClaim) { c.Annotations[provisionerAnnotation] = "x" }, false},
		"of a node of no name": {&user.DefaultInfo{Name: "x", Groups: []string{"kedge:node:"}}, "pvc-1", "1", func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, nodeAnnotation) }, false},
	} {
		volume := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: test.volume},
			Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: test.uid}},
		}
		_, err := request{who: test.who, operation: admission.Create, resource: volumes, object: volume}.run(t, false, claim(test.change))
		if accepted := err == nil; accepted != test.accepted || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (request{who: storage, operation: admission.Create, resource: volumes, object: &corev1.PersistentVolume{}}).run(t, false); !apierrors.IsForbidden(err) {
		t.Errorf("a volume for nobody: %v", err)
	}
}

// TestCheckCapacity wants false capacities of nodes to be refused in users'
// namespaces.
func TestCheckCapacity(t *testing.T) {
	class := func(name, provisioner string) runtime.Object {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	}
	for name, test := range map[string]struct {
		who              user.Info
		namespace, class string
		accepted         bool
	}{
		"a node":               {storage, "kube-system", "ours", true},
		"a user":               {tenant, "ns", "ours", false},
		"a user, too early":    {tenant, "ns", "tomorrow", false},
		"another driver":       {tenant, "ns", "theirs", true},
		"an administrator":     {admin, "ns", "ours", true},
		"a node, out of place": {storage, "ns", "ours", false},
	} {
		for _, operation := range []admission.Operation{admission.Create, admission.Update} {
			capacity := &storagev1.CSIStorageCapacity{StorageClassName: test.class}
			r := request{who: test.who, operation: operation, resource: capacities, namespace: test.namespace, object: capacity}
			_, err := r.run(t, false, class("ours", driver), class("theirs", "x"))
			if accepted := err == nil; accepted != test.accepted || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestCheckService wants a Service to get no address of other Services.
func TestCheckService(t *testing.T) {
	ranges := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.43.0.0/16", "fd00:43::/112"}}}
	service := func(external ...string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.7", ExternalIPs: external}}
	}
	balanced := func(address string) *corev1.Service {
		service := service()
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "x"}, {IP: address}}
		return service
	}
	for name, test := range map[string]struct {
		now, old *corev1.Service
		accepted bool
	}{
		"none":                        {service(), nil, true},
		"another network's":           {service("192.0.2.1", "2001:db8::1"), nil, true},
		"DNS's":                       {service("192.0.2.1", "10.43.0.10"), nil, false},
		"written with zeros":          {service("010.043.000.010"), nil, false},
		"written as IPv6":             {service("::ffff:10.43.0.10"), nil, false},
		"an IPv6 one":                 {service("fd00:43::a"), nil, false},
		"later":                       {service("10.43.0.10"), service(), false},
		"from before the rule":        {service("10.43.0.10"), service("10.43.0.10"), true},
		"from before, and another":    {service("10.43.0.10", "10.43.0.1"), service("10.43.0.10"), false},
		"a load balancer's":           {balanced("192.0.2.1"), service(), true},
		"a load balancer's, stolen":   {balanced("10.43.0.1"), service(), false},
		"a load balancer without one": {balanced(""), service(), true},
	} {
		r := request{who: admin, operation: admission.Create, resource: services, namespace: "ns", object: test.now}
		if test.old != nil {
			r.operation, r.old = admission.Update, test.old
		}
		for _, r.subresource = range []string{"", "status"} {
			_, err := r.run(t, false, hosts(ranges)...)
			if accepted := err == nil; accepted != test.accepted || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// hosts returns objects with those of a node and of an API server.
func hosts(objects ...runtime.Object) []runtime.Object {
	return append(objects,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8::10"},
			{Type: corev1.NodeExternalIP, Address: "203.0.113.10"}, {Type: corev1.NodeHostName, Address: "a"},
		}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.20"}}},
		})
}

// TestForeignAddresses has Services with addresses that belong to others: to a host, a pod, a pool, or to no
// network at all. The API refuses these addresses in every spelling and from every user. Only load balancers
// may write addresses of nodes.
func TestForeignAddresses(t *testing.T) {
	balancer := &user.DefaultInfo{Name: "metallb", Groups: []string{"balancers"}}
	for address, accepted := range map[string]bool{
		"192.0.2.1": true, "2001:db8::1": true, "198.51.100.1": true, "192.0.2.210": true, "": true, "nonsense": true,
		"192.0.2.10": false, "192.000.002.010": false, "::ffff:192.0.2.10": false, "::ffff:c000:20a": false, "2001:db8::10": false, "2001:0DB8:0::0010": false, "203.0.113.10": false,
		"192.0.2.20": false, "192.0.2.100": false, "192.0.2.200": false, "192.0.2.209": false, "2001:db8:1::5": false,
		"10.42.1.7": false, "::ffff:10.42.1.7": false, "fd00:42:1::7": false, "10.44.0.1": true,
		"127.0.0.1": false, "127.9.9.9": false, "::1": false, "::ffff:127.0.0.1": false, "0.0.0.0": false, "::": false,
		"169.254.169.254": false, "fe80::1": false, "168.63.129.16": false, "fd00:ec2::254": false, "224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
	} {
		external := &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.2", address}}}
		balanced := &corev1.Service{Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: address}}}}}
		for _, test := range []struct {
			what     string
			who      user.Info
			now, old *corev1.Service
			accepted bool
		}{
			{"a tenant's external address", tenant, external, nil, accepted},
			{"an administrator's external address", admin, external, nil, accepted},
			{"a load balancer's external address", balancer, external, nil, accepted},
			{"an external address that is added", tenant, external, &corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.2"}}}, accepted},
			{"an external address from before the rule", tenant, external, external, true},
			{"a tenant's status", tenant, balanced, &corev1.Service{}, accepted},
			{"a load balancer's status", balancer, balanced, &corev1.Service{}, true},
			{"a status from before the rule", tenant, balanced, balanced, true},
		} {
			r := request{who: test.who, operation: admission.Create, resource: services, namespace: "ns", object: test.now}
			if test.old != nil {
				r.operation, r.subresource, r.old = admission.Update, "status", test.old
			}
			_, err := r.run(t, false, hosts()...)
			if got := err == nil; got != test.accepted || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("%s %s: %v", test.what, address, err)
			}
		}
	}
}

// TestCheckTunnels wants a node not to claim another node's end of the tunnels.
func TestCheckTunnels(t *testing.T) {
	const mac, key = `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`, `{"PublicKey":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}`
	node := func(name, data, address string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			tunnelAnnotations[0].data: data, tunnelAnnotations[0].address: address,
		}}}
	}
	v6 := func(node *corev1.Node) *corev1.Node {
		node.Annotations = map[string]string{tunnelAnnotations[1].data: mac, tunnelAnnotations[1].address: "2001:db8::1"}
		return node
	}
	for name, test := range map[string]struct {
		who             user.Info
		other, now, old *corev1.Node
		accepted        bool
	}{
		"its own":                 {flannel, node("b", mac, "192.0.2.2"), node("a", `{"VtepMAC":"12:c6:65:89:b4:e4"}`, "192.0.2.1"), node("a", "", ""), true},
		"another's":               {flannel, node("b", mac, "192.0.2.2"), node("a", mac, "192.0.2.1"), node("a", "", ""), false},
		"another's, new":          {kubelet, node("b", mac, "192.0.2.2"), node("a", mac, "192.0.2.1"), nil, false},
		"another's, written else": {flannel, node("b", mac, "192.0.2.2"), node("a", `{"vtepmac":"12-C6-65-89-B4-E3"}`, "192.0.2.1"), node("a", "", ""), false},
		"behind a wrong field":    {flannel, node("b", mac, "192.0.2.2"), node("a", `{"PublicKey":1,"VtepMAC":"12:c6:65:89:b4:e3"}`, "192.0.2.1"), node("a", "", ""), false},
		"another's key":           {flannel, node("b", key, "192.0.2.2"), node("a", key, "192.0.2.1"), node("a", "", ""), false},
		"a key beside a MAC":      {flannel, node("b", key, "192.0.2.2"), node("a", `{"VtepMAC":"12:c6:65:89:b4:e4",`+key[1:], "192.0.2.1"), node("a", "", ""), false},
		"then the address":        {flannel, node("b", mac, "192.0.2.2"), node("a", mac, "192.0.2.1"), node("a", mac, "192.0.2.2"), false},
		"IPv6":                    {flannel, v6(node("b", "", "")), v6(node("a", "", "")), nil, true},
		"a host's other name":     {flannel, node("b", mac, "192.0.2.2"), node("a", mac, "192.0.2.2"), node("a", "", ""), true},
		"nothing new":             {kubelet, node("b", mac, "192.0.2.2"), node("a", mac, "192.0.2.1"), node("a", mac, "192.0.2.1"), true},
		"no tunnels":              {flannel, node("b", "null", "192.0.2.2"), node("a", "null", "192.0.2.1"), node("a", "", ""), true},
		"an administrator":        {admin, node("b", mac, "192.0.2.2"), node("a", mac, "192.0.2.1"), node("a", "", ""), true},
	} {
		r := request{who: test.who, operation: admission.Create, resource: nodes, object: test.now}
		if test.old != nil {
			r.operation, r.old = admission.Update, test.old
		}
		_, err := r.run(t, false, test.other)
		if accepted := err == nil; accepted != test.accepted || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckAddress wants a node to hold only the addresses that it may hold.
func TestCheckAddress(t *testing.T) {
	balancer := &user.DefaultInfo{Name: servicelb.User, Groups: []string{"kedge:node:a"}}
	lease := func(holder, nodes string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "kedge-address-192.0.2.100", Labels: map[string]string{servicelb.LeaseLabel: ""},
				Annotations: map[string]string{servicelb.NodesOfLease: nodes, servicelb.AddressOfLease: "192.0.2.100"},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
	}
	election := lease("server-1", "")
	election.Labels = nil
	taken := election.DeepCopy()
	taken.Spec.HolderIdentity = new("a")
	marked := taken.DeepCopy()
	marked.Labels = lease("", "").Labels
	marked.Annotations[servicelb.NodesOfLease] = "a"
	kept := lease("a", "a,b")
	kept.Finalizers = []string{"x"}
	for name, test := range map[string]struct {
		who       user.Info
		operation admission.Operation
		namespace string
		old, now  *coordinationv1.Lease
		accepted  bool
	}{
		"takes":                       {balancer, admission.Update, "kube-system", lease("", "a,b"), lease("a", "a,b"), true},
		"takes from another":          {balancer, admission.Update, "kube-system", lease("b", "a,b"), lease("a", "a,b"), true},
		"renews":                      {balancer, admission.Update, "kube-system", lease("a", "a,b"), lease("a", "a,b"), true},
		"releases":                    {balancer, admission.Update, "kube-system", lease("a", "a,b"), lease("", "a,b"), true},
		"releases what it lost":       {balancer, admission.Update, "kube-system", lease("a", "b"), lease("", "b"), true},
		"may not hold it":             {balancer, admission.Update, "kube-system", lease("", "b,aa"), lease("a", "b,aa"), false},
		"allows itself":               {balancer, admission.Update, "kube-system", lease("", "b"), lease("a", "a,b"), false},
		"in another's name":           {balancer, admission.Update, "kube-system", lease("", "a,b"), lease("b", "a,b"), false},
		"ends another's":              {balancer, admission.Update, "kube-system", lease("b", "a,b"), lease("", "a,b"), false},
		"keeps it forever":            {balancer, admission.Update, "kube-system", lease("a", "a,b"), kept, false},
		"the Lease of the election":   {balancer, admission.Update, "kube-system", election, taken, false},
		"the Lease of it, with label": {balancer, admission.Update, "kube-system", election, marked, false},
		"makes one":                   {balancer, admission.Create, "kube-system", nil, lease("a", "a,b"), false},
		"deletes one":                 {balancer, admission.Delete, "kube-system", lease("a", "a,b"), nil, false},
		"in another namespace":        {balancer, admission.Update, "kube-node-lease", lease("", "a,b"), lease("a", "a,b"), false},
		"an administrator":            {admin, admission.Update, "kube-system", election, taken, true},
	} {
		r := request{who: test.who, operation: test.operation, resource: leases, namespace: test.namespace}
		if test.old != nil {
			r.old = test.old
		}
		if test.now != nil {
			r.object = test.now
		}
		_, err := r.run(t, false)
		if accepted := err == nil; accepted != test.accepted || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckHelm wants only users with all rights to write charts outside of
// kube-system.
func TestCheckHelm(t *testing.T) {
	controller := func(name string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:kube-system:" + name}
	}
	for name, test := range map[string]struct {
		who       user.Info
		operation admission.Operation
		namespace string
		accepted  bool
	}{
		"creating":                  {tenant, admission.Create, "ns", false},
		"changing":                  {tenant, admission.Update, "ns", false},
		"deleting":                  {tenant, admission.Delete, "ns", false},
		"a scheduler":               {scheduler, admission.Create, "ns", false},
		"by an administrator":       {admin, admission.Create, "ns", true},
		"deleted by one":            {admin, admission.Delete, "ns", true},
		"in kube-system":            {tenant, admission.Create, "kube-system", true},
		"of a namespace that goes":  {controller("namespace-controller"), admission.Delete, "ns", true},
		"of an owner that is gone":  {controller("generic-garbage-collector"), admission.Update, "ns", true},
		"created by that":           {controller("generic-garbage-collector"), admission.Create, "ns", false},
		"of another controller":     {controller("replicaset-controller"), admission.Delete, "ns", false},
		"of one that only looks it": {&user.DefaultInfo{Name: "system:serviceaccount:ns:namespace-controller"}, admission.Delete, "ns", false},
	} {
		for _, resource := range []schema.GroupResource{helmCharts, helmConfigs} {
			for _, subresource := range []string{"", "status"} {
				r := request{who: test.who, operation: test.operation, resource: resource, subresource: subresource, namespace: test.namespace}
				if r.operation != admission.Delete {
					r.object = &unstructured.Unstructured{}
				}
				_, err := r.run(t, false)
				if accepted := err == nil; accepted != test.accepted || err != nil && !apierrors.IsForbidden(err) {
					t.Errorf("%s of %s/%s: %v", name, resource.Resource, subresource, err)
				}
			}
		}
	}
}

// TestNetworkPolicies wants a warning while nothing enforces NetworkPolicies.
func TestNetworkPolicies(t *testing.T) {
	r := request{who: tenant, operation: admission.Create, resource: networkPolicies, object: &networkingv1.NetworkPolicy{}}
	for unenforced, want := range map[bool]int{false: 0, true: 1} {
		warned, err := r.run(t, unenforced)
		if err != nil || len(warned) != want || want > 0 && !strings.Contains(warned[0], "does not enforce NetworkPolicies") {
			t.Errorf("nothing enforces them %t: warned of %q, %v", unenforced, warned, err)
		}
	}
	r.operation, r.object = admission.Delete, nil
	if warned, err := r.run(t, true); err != nil || len(warned) > 0 {
		t.Errorf("warned of %q that one is deleted: %v", warned, err)
	}
}
