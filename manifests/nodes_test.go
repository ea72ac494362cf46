package manifests

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// boolean is an expression of a policy with a boolean result.
type boolean string

func (b boolean) GetExpression() string  { return string(b) }
func (boolean) ReturnTypes() []*cel.Type { return []*cel.Type{cel.BoolType} }

// nodePolicy returns the condition and the rules of the policy for nodes.
func nodePolicy(t *testing.T) (evaluate plugincel.ConditionEvaluator) {
	t.Helper()
	text, err := Files.ReadFile("nodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)).Decode(policy); err != nil {
		t.Fatal(err)
	}
	var expressions []plugincel.ExpressionAccessor
	for _, condition := range policy.Spec.MatchConditions {
		expressions = append(expressions, boolean(condition.Expression))
	}
	for _, validation := range policy.Spec.Validations {
		expressions = append(expressions, boolean(validation.Expression))
	}
	compiler := plugincel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	return compiler.CompileCondition(expressions, plugincel.OptionalVariableDeclarations{}, environment.NewExpressions)
}

// TestNodePolicy has nodes, and others, write the objects that the policy checks.
func TestNodePolicy(t *testing.T) {
	evaluate := nodePolicy(t)
	of := func(name string) user.Info {
		return &user.DefaultInfo{Name: name, Groups: []string{"kedge:node:a"}}
	}
	kubelet, flannel, storage, balancer := of("system:node:a"), of("system:kedge:flannel"), of("system:kedge:storage"), of("system:kedge:loadbalancer")
	gateway := of("system:kedge:gateway")
	admin := &user.DefaultInfo{Name: "admin"}
	const (
		node = `{"metadata": {"name": "a", "labels": {"local.kedge.dev/node": "a"}, "annotations": {"x": "y", "flannel.alpha.coreos.com/public-ip": "192.0.2.1"}},
			"spec": {"podCIDR": "10.42.0.0/24", "podCIDRs": ["10.42.0.0/24"]}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "a"}]}}`
		empty  = `{"metadata": {"name": "a"}, "spec": {}, "status": {}}`
		volume = `{"metadata": {"name": "pvc-1", "annotations": {"pv.kubernetes.io/provisioned-by": "local.kedge.dev"}, "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"]},
			"spec": {"csi": {"driver": "local.kedge.dev", "volumeHandle": "pvc-1", "fsType": "ext4", "volumeAttributes": {"a": "b"}},
			"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "local.kedge.dev/node", "operator": "In", "values": ["a"]}]}]}}}}`
		claim    = `{"metadata": {"name": "c", "annotations": {"x": "y", "volume.kubernetes.io/selected-node": "a"}, "finalizers": ["kubernetes.io/pvc-protection"]}, "spec": {}}`
		capacity = `{"metadata": {"name": "c", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a"}]}, "nodeTopology": {"matchLabels": {"local.kedge.dev/node": "a"}}}`
		content  = `{"metadata": {"name": "s", "labels": {"snapshot.storage.kubernetes.io/managed-by": "a"}, "finalizers": ["other"]}, "spec": {"driver": "local.kedge.dev"}}`
	)
	for name, test := range map[string]struct {
		who      user.Info
		resource string
		old, now string // empty for no object; now may be a merge patch of old
		accepted bool
	}{
		"flannel annotates":                   {flannel, "nodes", node, `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.2"}}}`, true},
		"flannel annotates the first time":    {flannel, "nodes", empty, `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.2"}}}`, true},
		"flannel writes nothing":              {flannel, "nodes", node, `{}`, true},
		"flannel annotates otherwise":         {flannel, "nodes", node, `{"metadata": {"annotations": {"z": "y"}}}`, false},
		"flannel changes another's":           {flannel, "nodes", node, `{"metadata": {"annotations": {"x": "z"}}}`, false},
		"flannel removes another's":           {flannel, "nodes", node, `{"metadata": {"annotations": {"x": null}}}`, false},
		"flannel removes all":                 {flannel, "nodes", node, `{"metadata": {"annotations": null}}`, false},
		"flannel labels":                      {flannel, "nodes", node, `{"metadata": {"labels": {"x": "y"}}}`, false},
		"flannel labels the first time":       {flannel, "nodes", empty, `{"metadata": {"labels": {"x": "y"}}}`, false},
		"flannel removes labels":              {flannel, "nodes", node, `{"metadata": {"labels": null}}`, false},
		"flannel keeps the node":              {flannel, "nodes", node, `{"metadata": {"finalizers": ["x"]}}`, false},
		"flannel owns":                        {flannel, "nodes", node, `{"metadata": {"ownerReferences": [{"kind": "Node", "name": "x"}]}}`, false},
		"flannel changes the spec":            {flannel, "nodes", node, `{"spec": {"unschedulable": true}}`, false},
		"flannel changes the status":          {flannel, "nodes", node, `{"status": {"phase": "x"}}`, false},
		"flannel creates":                     {flannel, "nodes", "", node, false},
		"flannel of another node":             {&user.DefaultInfo{Name: "system:kedge:flannel", Groups: []string{"kedge:node:b"}}, "nodes", node, `{}`, false},
		"a balancer reports":                  {balancer, "nodes", node, `{"metadata": {"annotations": {"loadbalancer.kedge.dev/ports": "{}"}}}`, true},
		"a balancer writes flannel's":         {balancer, "nodes", node, `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.2"}}}`, false},
		"a balancer changes the status":       {balancer, "nodes", node, `{"status": {"phase": "x"}}`, false},
		"a balancer labels":                   {balancer, "nodes", node, `{"metadata": {"labels": {"x": "y"}}}`, false},
		"a balancer of another node":          {&user.DefaultInfo{Name: "system:kedge:loadbalancer", Groups: []string{"kedge:node:b"}}, "nodes", node, `{}`, false},
		"a gateway reports":                   {gateway, "nodes", node, `{"metadata": {"annotations": {"gateway.kedge.dev/listening": "30080/tcp"}}}`, true},
		"a gateway reports the first time":    {gateway, "nodes", empty, `{"metadata": {"annotations": {"gateway.kedge.dev/listening": "30080/tcp"}}}`, true},
		"a gateway reports no more":           {gateway, "nodes", strings.Replace(node, `"x": "y"`, `"x": "y", "gateway.kedge.dev/listening": "1/tcp"`, 1), `{"metadata": {"annotations": {"gateway.kedge.dev/listening": null}}}`, true},
		"a gateway writes a balancer's":       {gateway, "nodes", node, `{"metadata": {"annotations": {"loadbalancer.kedge.dev/ports": "{}"}}}`, false},
		"a gateway writes flannel's":          {gateway, "nodes", node, `{"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.2"}}}`, false},
		"a gateway changes another's":         {gateway, "nodes", node, `{"metadata": {"annotations": {"x": "z"}}}`, false},
		"a gateway changes the status":        {gateway, "nodes", node, `{"status": {"phase": "x"}}`, false},
		"a gateway labels":                    {gateway, "nodes", node, `{"metadata": {"labels": {"x": "y"}}}`, false},
		"a gateway of another node":           {&user.DefaultInfo{Name: "system:kedge:gateway", Groups: []string{"kedge:node:b"}}, "nodes", node, `{}`, false},
		"a balancer writes a gateway's":       {balancer, "nodes", node, `{"metadata": {"annotations": {"gateway.kedge.dev/listening": "1/tcp"}}}`, false},
		"flannel writes a balancer's":         {flannel, "nodes", node, `{"metadata": {"annotations": {"loadbalancer.kedge.dev/ports": "{}"}}}`, false},
		"a kubelet registers":                 {kubelet, "nodes", "", `{"metadata": {"name": "a"}, "spec": {"providerID": "kedge://a"}, "status": {"addresses": [{"type": "Hostname", "address": "a"}]}}`, true},
		"a kubelet registers nothing":         {kubelet, "nodes", "", empty, true},
		"a kubelet with a range":              {kubelet, "nodes", "", `{"metadata": {"name": "a"}, "spec": {"podCIDR": "10.42.0.0/24"}, "status": {}}`, false},
		"a kubelet with ranges":               {kubelet, "nodes", "", `{"metadata": {"name": "a"}, "spec": {"podCIDRs": ["10.42.0.0/24"]}, "status": {}}`, false},
		"a kubelet sets a range":              {kubelet, "nodes", empty, `{"spec": {"podCIDRs": ["10.42.0.0/24"]}}`, false},
		"a kubelet drops its range":           {kubelet, "nodes", node, `{"spec": {"podCIDR": null, "podCIDRs": null}}`, false},
		"a kubelet with a finalizer":          {kubelet, "nodes", "", `{"metadata": {"name": "a", "finalizers": ["x"]}, "spec": {}}`, false},
		"a kubelet with an owner":             {kubelet, "nodes", "", `{"metadata": {"name": "a", "ownerReferences": [{"kind": "Node", "name": "x"}]}, "spec": {}}`, false},
		"a kubelet says how it is":            {kubelet, "nodes", node, `{"status": {"conditions": [{"type": "Ready"}]}, "metadata": {"annotations": {"x": "z"}}}`, true},
		"a kubelet keeps its node":            {kubelet, "nodes", node, `{"metadata": {"finalizers": ["x"]}}`, false},
		"a kubelet with another's name":       {kubelet, "nodes", node, `{"status": {"addresses": [{"type": "Hostname", "address": "b"}]}}`, false},
		"a kubelet with another's DNS name":   {kubelet, "nodes", node, `{"status": {"addresses": [{"type": "InternalDNS", "address": "b"}]}}`, false},
		"a kubelet with a name that is there": {kubelet, "nodes", `{"metadata": {"name": "a"}, "status": {"addresses": [{"type": "ExternalDNS", "address": "b"}]}}`, `{"status": {"phase": "x"}}`, true},
		"a node's label of another":           {kubelet, "nodes", node, `{"metadata": {"labels": {"local.kedge.dev/node": "b"}}}`, false},
		"a kubelet registers with labels":     {kubelet, "nodes", "", `{"metadata": {"name": "a", "labels": {"svccontroller.k3s.cattle.io/enablelb": "true", "zone": "a", "kubernetes.io/hostname": "a", "kubernetes.io/os": "linux"}}, "spec": {}}`, true},
		"a kubelet registers as another":      {kubelet, "nodes", "", `{"metadata": {"name": "a", "labels": {"kubernetes.io/hostname": "b"}}, "spec": {}}`, false},
		"a kubelet becomes another":           {kubelet, "nodes", node, `{"metadata": {"labels": {"kubernetes.io/hostname": "b"}}}`, false},
		"a kubelet becomes itself":            {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"kubernetes.io/hostname": "old", `, 1), `{"metadata": {"labels": {"kubernetes.io/hostname": "a"}}}`, true},
		"a kubelet with a name as it was":     {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"kubernetes.io/hostname": "old", `, 1), `{"status": {"phase": "x"}}`, true},
		"a kubelet reports its zone":          {kubelet, "nodes", node, `{"metadata": {"labels": {"topology.kubernetes.io/zone": "z", "kubernetes.io/arch": "arm64"}}}`, true},
		"a kubelet reports another zone":      {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"topology.kubernetes.io/zone": "old", `, 1), `{"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}}`, true},
		"a kubelet has a storage driver":      {kubelet, "nodes", empty, `{"metadata": {"labels": {"topology.example.com/zone": "z", "local.kedge.dev/node": "a"}}}`, true},
		"a kubelet changes a driver's place":  {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"topology.example.com/zone": "old", `, 1), `{"metadata": {"labels": {"topology.example.com/zone": "z"}}}`, false},
		"a kubelet enables itself":            {kubelet, "nodes", node, `{"metadata": {"labels": {"svccontroller.k3s.cattle.io/enablelb": "true"}}}`, false},
		"a kubelet enables itself, unlabeled": {kubelet, "nodes", empty, `{"metadata": {"labels": {"svccontroller.k3s.cattle.io/enablelb": "true"}}}`, false},
		"a kubelet joins a pool":              {kubelet, "nodes", node, `{"metadata": {"labels": {"svccontroller.k3s.cattle.io/lbpool": "a"}}}`, false},
		"a kubelet joins one more pool":       {kubelet, "nodes", node, `{"metadata": {"labels": {"lbpool.svccontroller.k3s.cattle.io/a": "true"}}}`, false},
		"a kubelet changes its pool":          {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"svccontroller.k3s.cattle.io/lbpool": "b", `, 1), `{"metadata": {"labels": {"svccontroller.k3s.cattle.io/lbpool": "a"}}}`, false},
		"a kubelet includes itself":           {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "", `, 1), `{"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": null}}}`, false},
		"a kubelet includes itself otherwise": {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "", `, 1), `{"metadata": {"labels": null}}`, false},
		"a kubelet excludes itself":           {kubelet, "nodes", node, `{"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}}`, false},
		"a kubelet gets a user's label":       {kubelet, "nodes", node, `{"metadata": {"labels": {"pool": "vault"}}}`, false},
		"a kubelet drops a user's label":      {kubelet, "nodes", strings.Replace(node, `"labels": {`, `"labels": {"pool": "none", `, 1), `{"metadata": {"labels": {"pool": null}}}`, false},
		"an administrator chooses":            {admin, "nodes", node, `{"metadata": {"labels": {"svccontroller.k3s.cattle.io/enablelb": "true", "pool": "vault"}}}`, true},
		"the IPAM gives a range":              {&user.DefaultInfo{Name: "system:serviceaccount:kube-system:node-controller"}, "nodes", empty, `{"spec": {"podCIDRs": ["10.42.0.0/24"]}}`, true},
		"an administrator":                    {admin, "nodes", node, `{"metadata": {"finalizers": ["x"], "labels": {"x": "y"}}}`, true},

		"a volume":                      {storage, "persistentvolumes", "", volume, true},
		"a volume goes":                 {storage, "persistentvolumes", volume, "", true},
		"a volume loses its finalizer":  {storage, "persistentvolumes", volume, `{"metadata": {"finalizers": null}}`, true},
		"a volume grows":                {storage, "persistentvolumes", volume, `{"spec": {"capacity": {"storage": "1Gi"}}}`, false},
		"a volume with a Secret":        {storage, "persistentvolumes", "", strings.Replace(volume, `"fsType"`, `"nodeStageSecretRef": {"name": "s", "namespace": "n"}, "fsType"`, 1), false},
		"a volume of another driver":    {storage, "persistentvolumes", "", strings.Replace(volume, `"driver": "local.kedge.dev"`, `"driver": "x"`, 1), false},
		"a volume of another node":      {storage, "persistentvolumes", "", strings.Replace(volume, `["a"]`, `["b"]`, 1), false},
		"another node's volume goes":    {storage, "persistentvolumes", strings.Replace(volume, `["a"]`, `["b"]`, 1), "", false},
		"a volume with an annotation":   {storage, "persistentvolumes", "", strings.Replace(volume, `"annotations": {`, `"annotations": {"pv.kubernetes.io/bound-by-controller": "yes", `, 1), false},
		"a volume with a label":         {storage, "persistentvolumes", "", strings.Replace(volume, `"annotations"`, `"labels": {"x": "y"}, "annotations"`, 1), false},
		"a volume is annotated":         {storage, "persistentvolumes", volume, `{"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}}`, false},
		"a volume gets an owner":        {storage, "persistentvolumes", volume, `{"metadata": {"ownerReferences": [{"kind": "Node", "name": "a"}]}}`, false},
		"a volume that others labelled": {storage, "persistentvolumes", strings.Replace(volume, `"annotations"`, `"labels": {"x": "y"}, "annotations"`, 1), `{"metadata": {"finalizers": null}}`, true},

		"a claim is given back":         {storage, "persistentvolumeclaims", claim, `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`, true},
		"a claim is given to another":   {storage, "persistentvolumeclaims", claim, `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "b"}}}`, false},
		"a claim is annotated":          {storage, "persistentvolumeclaims", claim, `{"metadata": {"annotations": {"z": "y"}}}`, false},
		"a claim loses an annotation":   {storage, "persistentvolumeclaims", claim, `{"metadata": {"annotations": {"x": null}}}`, false},
		"a claim is labelled":           {storage, "persistentvolumeclaims", claim, `{"metadata": {"labels": {"z": "y"}}}`, false},
		"a claim loses its protection":  {storage, "persistentvolumeclaims", claim, `{"metadata": {"finalizers": null}}`, false},
		"a claim gets an owner":         {storage, "persistentvolumeclaims", claim, `{"metadata": {"ownerReferences": [{"kind": "Node", "name": "a"}]}}`, false},
		"a claim of another node":       {storage, "persistentvolumeclaims", strings.Replace(claim, `"a"`, `"b"`, 1), `{"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}}`, false},
		"a claim's author does as ever": {admin, "persistentvolumeclaims", claim, `{"metadata": {"labels": {"z": "y"}}}`, true},

		"a capacity":                    {storage, "csistoragecapacities", "", capacity, true},
		"a capacity changes":            {storage, "csistoragecapacities", capacity, `{"capacity": "1Gi"}`, true},
		"a capacity without an owner":   {storage, "csistoragecapacities", "", `{"metadata": {"name": "c"}, "nodeTopology": {"matchLabels": {"local.kedge.dev/node": "a"}}}`, true},
		"a capacity of another's":       {storage, "csistoragecapacities", "", strings.Replace(capacity, `"name": "a"`, `"name": "b"`, 1), false},
		"a capacity of no node":         {storage, "csistoragecapacities", "", strings.Replace(capacity, `"Node"`, `"Namespace"`, 1), false},
		"a capacity that stays":         {storage, "csistoragecapacities", capacity, `{"metadata": {"finalizers": ["x"]}}`, false},
		"a capacity of another's place": {storage, "csistoragecapacities", capacity, `{"nodeTopology": {"matchLabels": {"local.kedge.dev/node": "b"}}}`, false},

		"a snapshot is ready":             {storage, "volumesnapshotcontents", content, `{"status": {"readyToUse": true}}`, true},
		"a snapshot is protected":         {storage, "volumesnapshotcontents", content, `{"metadata": {"finalizers": ["other", "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"]}}`, true},
		"a snapshot loses its finalizers": {storage, "volumesnapshotcontents", content, `{"metadata": {"finalizers": null}}`, true},
		"a snapshot that stays":           {storage, "volumesnapshotcontents", content, `{"metadata": {"finalizers": ["other", "x"]}}`, false},
		"a snapshot gets an owner":        {storage, "volumesnapshotcontents", content, `{"metadata": {"ownerReferences": [{"kind": "Node", "name": "a"}]}}`, false},
		"a snapshot of another node":      {storage, "volumesnapshotcontents", strings.Replace(content, `"a"`, `"b"`, 1), `{"metadata": {"finalizers": null}}`, false},
		"a snapshot changes hands":        {storage, "volumesnapshotcontents", content, `{"metadata": {"labels": {"snapshot.storage.kubernetes.io/managed-by": "b"}}}`, false},
	} {
		if got := accepts(t, evaluate, test.who, test.resource, test.old, test.now); got != test.accepted {
			t.Errorf("%s: accepted is %t", name, got)
		}
	}
}

// accepts tells whether the policy lets a request pass.
func accepts(t *testing.T, evaluate plugincel.ConditionEvaluator, who user.Info, resource, old, now string) bool {
	t.Helper()
	before, after, operation := decode(t, old), decode(t, now), admission.Update
	var object, oldObject runtime.Object
	switch {
	case old == "":
		operation, object = admission.Create, &unstructured.Unstructured{Object: after}
	case now == "":
		operation, oldObject = admission.Delete, &unstructured.Unstructured{Object: before}
	default:
		oldObject = &unstructured.Unstructured{Object: before}
		object = &unstructured.Unstructured{Object: merge(decode(t, old), after)}
	}
	gvr := schema.GroupVersionResource{Version: "v1", Resource: resource}
	attributes := admission.NewAttributesRecord(object, oldObject, schema.GroupVersionKind{}, "", "a", gvr, "", operation, nil, false, who)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedObject: admission.NewLazyObject(object), VersionedOldObject: admission.NewLazyObject(oldObject)}
	request := plugincel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(gvr), metav1.GroupVersionKind{})
	results, _, err := evaluate.ForInput(t.Context(), versioned, request, plugincel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	// The first result tells whether the policy applies to the request at all. An error
	// counts as a refusal.
	passes := func(result plugincel.EvaluationResult) bool {
		if result.Error != nil {
			t.Logf("%s of %s by %s: %v", operation, resource, who.GetName(), result.Error)
		}
		return result.Error == nil && result.EvalResult.Value() == true
	}
	return !passes(results[0]) || !slices.ContainsFunc(results[1:], func(result plugincel.EvaluationResult) bool { return !passes(result) })
}

func decode(t *testing.T, text string) (object map[string]any) {
	t.Helper()
	if text != "" {
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	return object
}

// merge applies a merge patch.
func merge(object, patch map[string]any) map[string]any {
	merged := maps.Clone(object)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range patch {
		switch below, is := value.(map[string]any); {
		case value == nil:
			delete(merged, key)
		case is:
			had, _ := merged[key].(map[string]any)
			merged[key] = merge(had, below)
		default:
			merged[key] = value
		}
	}
	return merged
}
