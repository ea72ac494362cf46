package adopt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
)

// registry begins the names of the API's objects in the datastore.
const registry = "/registry/"

// Annotations and labels with which k3s marks what it has made.
const (
	ownerKind = "objectset.rio.cattle.io/owner-gvk"
	ownerName = "objectset.rio.cattle.io/owner-name"
	// chartLabel is on the Jobs and pods with which k3s installs HelmCharts.
	chartLabel = "helmcharts.helm.cattle.io/chart"
	// balancerLabel is on the DaemonSets of k3s's load balancer.
	balancerLabel = "svccontroller.k3s.cattle.io/svcname"
	// accountUID is on a Secret with the token of a ServiceAccount.
	accountUID = corev1.ServiceAccountUIDKey
	// k3sNewcomers is the group of bootstrap tokens with which nodes join k3s.
	k3sNewcomers = "system:bootstrappers:k3s:default-node-token"
)

// Kinds of which k3s makes or marks objects. Other groups have kinds of these names too, such as
// Knative's Service.
var (
	nodeKind      = corev1.SchemeGroupVersion.WithKind("Node").GroupKind()
	podKind       = corev1.SchemeGroupVersion.WithKind("Pod").GroupKind()
	serviceKind   = corev1.SchemeGroupVersion.WithKind("Service").GroupKind()
	jobKind       = batchv1.SchemeGroupVersion.WithKind("Job").GroupKind()
	daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet").GroupKind()
)

// replaced are the manifests of k3s in whose place kedge has something of its own, with
// the reason why their objects are left out. The second value is the part of kedge, empty
// if it cannot be disabled.
var replaced = map[string]struct {
	reason string
	part   config.Part
}{
	"ccm":                        {"it is a right of k3s's cloud controller, which kedge does not have", ""},
	"rolebindings":               {"it is a right of k3s's own components", ""},
	"coredns":                    {"kedge has the cluster's DNS built in", config.CoreDNS},
	"local-storage":              {"kedge has the class local-path built in, and makes its new volumes", config.LocalStorage},
	"aggregated-metrics-reader":  {metricsReason, config.MetricsServer},
	"auth-delegator":             {metricsReason, config.MetricsServer},
	"auth-reader":                {metricsReason, config.MetricsServer},
	"metrics-apiservice":         {metricsReason, config.MetricsServer},
	"metrics-server-deployment":  {metricsReason, config.MetricsServer},
	"metrics-server-service":     {metricsReason, config.MetricsServer},
	"metrics-server-serviceport": {metricsReason, config.MetricsServer},
	"resource-reader":            {metricsReason, config.MetricsServer},
}

const metricsReason = "kedge has the API metrics.k8s.io built in"

// finding is what is known of the last value of a key.
type finding struct {
	revision int64
	// reason says why the object is left out. It is empty if it is taken. silent says
	// that the user need not know.
	reason string
	silent bool

	kind            schema.GroupVersionKind
	namespace, name string
	uid             string
	// owners are the UIDs of objects that this one belongs to. It is left out if all of
	// them are.
	owners []string
	// custom is true for an object that only a CustomResourceDefinition can define.
	custom bool
}

// objects decides about the objects of a datastore.
type objects struct {
	stored  *apiserver.StoredObjects
	secrets value.Transformer
	cluster *config.Cluster

	found map[string]*finding
	// nodes are the last values of Nodes, by key, and api is the API's own Service.
	nodes map[string]*corev1.Node
	api   *corev1.Service
	// defined are the kinds of CustomResourceDefinitions, by key.
	defined map[string]schema.GroupKind
}

func newObjects(secrets value.Transformer, cluster *config.Cluster) *objects {
	return &objects{
		stored: apiserver.NewStoredObjects(), secrets: secrets, cluster: cluster,
		found: map[string]*finding{}, nodes: map[string]*corev1.Node{}, defined: map[string]schema.GroupKind{},
	}
}

// remove notes that a key was deleted.
func (o *objects) remove(key string) {
	delete(o.found, key)
	delete(o.nodes, key)
	delete(o.defined, key)
}

// look looks at a value of a key. Later values of the key replace earlier ones.
func (o *objects) look(ctx context.Context, key string, text []byte, revision int64) error {
	o.remove(key)
	f := &finding{revision: revision}
	o.found[key] = f
	switch {
	case strings.HasPrefix(key, "compact_rev_key"), key == registry+"health":
		f.reason, f.silent = "it is the datastore's own", true
		return nil
	case strings.HasPrefix(key, registry+"masterleases/"), key == registry+"services/endpoints/default/kubernetes", key == registry+"endpointslices/default/kubernetes":
		f.reason, f.silent = "it says where the API servers of k3s are", true
		return nil
	case strings.HasPrefix(key, "/bootstrap/"):
		f.name, f.reason = key, "it is k3s's copy of the authorities and keys, which kedge has in files"
		return nil
	case !strings.HasPrefix(key, registry):
		f.name, f.reason = key, "it is not an object of the API, and only k3s knows it"
		return nil
	}
	plain, err := o.plain(ctx, key, text)
	if err != nil {
		return err
	}
	read, err := o.stored.Read(plain)
	if err != nil {
		f.name, f.reason = key, fmt.Sprintf("it cannot be read: %v", err)
		return nil
	}
	f.kind, f.custom = read.Kind, read.Object == nil
	accessor, err := metaOf(read, plain)
	if err != nil {
		f.name, f.reason = key, fmt.Sprintf("it cannot be read: %v", err)
		return nil
	}
	f.namespace, f.name, f.uid = accessor.GetNamespace(), accessor.GetName(), string(accessor.GetUID())
	if f.name == "" { // such as ranges of addresses
		f.name = strings.TrimPrefix(key, registry)
	}
	if read.Fault != nil {
		f.reason = fmt.Sprintf("Kubernetes %s cannot read %s of %s: %v", release(), f.kind.Kind, f.kind.GroupVersion(), read.Fault)
		return nil
	}
	f.reason = o.ownPart(f.kind, accessor)
	f.owners = ownersOf(read.Object, accessor)
	o.note(key, read.Object)
	return nil
}

// note keeps what is asked of single objects later.
func (o *objects) note(key string, object any) {
	switch object := object.(type) {
	case *corev1.Node:
		o.nodes[key] = object
	case *corev1.Service:
		if object.Namespace == metav1.NamespaceDefault && object.Name == "kubernetes" {
			o.api = object
		}
	case *apiextensionsv1.CustomResourceDefinition:
		o.defined[key] = schema.GroupKind{Group: object.Spec.Group, Kind: object.Spec.Names.Kind}
	case *apiextensionsv1beta1.CustomResourceDefinition:
		o.defined[key] = schema.GroupKind{Group: object.Spec.Group, Kind: object.Spec.Names.Kind}
	}
}

// plain returns a value as it was before it was encrypted.
func (o *objects) plain(ctx context.Context, key string, text []byte) ([]byte, error) {
	plain, err := decrypt(ctx, o.secrets, key, text)
	if err == nil && len(plain) != len(text) && !isSecret(key) {
		err = fmt.Errorf("k3s encrypts more than Secrets, and kedge encrypts only those: with k3s, decrypt the other objects first")
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	return plain, nil
}

func isSecret(key string) bool { return strings.HasPrefix(key, registry+"secrets/") }

// metaOf returns the metadata of an object.
func metaOf(read *apiserver.Stored, plain []byte) (metav1.Object, error) {
	if read.Object != nil {
		if accessor, err := meta.Accessor(read.Object); err == nil {
			return accessor, nil
		}
		return &metav1.ObjectMeta{}, nil
	}
	var partial metav1.PartialObjectMetadata
	if plain[0] == '{' {
		if err := json.Unmarshal(plain, &partial); err != nil {
			return nil, err
		}
	}
	return &partial, nil
}

// ownPart returns why an object is left out that a part of k3s consists of. It returns an
// empty text for all other objects.
func (o *objects) ownPart(kind schema.GroupVersionKind, object metav1.Object) string {
	annotations, labels := object.GetAnnotations(), object.GetLabels()
	owner := annotations[ownerKind]
	switch part, known := replaced[annotations[ownerName]]; {
	case strings.HasPrefix(owner, "k3s.cattle.io/") && known && (part.part == "" || o.cluster.Has(part.part)):
		return part.reason
	case strings.HasPrefix(owner, "helm.cattle.io/"), labels[chartLabel] != "" && (kind.GroupKind() == jobKind || kind.GroupKind() == podKind):
		return "with it k3s installs a HelmChart, which kedge does without"
	case labels[balancerLabel] != "" && kind.GroupKind() == daemonSetKind:
		return "it is k3s's load balancer, and kedge has its own"
	}
	return ""
}

// ownersOf returns the UIDs of objects that this one belongs to. A Service has
// a name in place of the UID, because not all that belongs to it has that.
func ownersOf(object any, accessor metav1.Object) (owners []string) {
	for _, owner := range accessor.GetOwnerReferences() {
		owners = append(owners, string(owner.UID))
	}
	switch object := object.(type) {
	case *corev1.Secret:
		if uid := object.Annotations[accountUID]; uid != "" {
			owners = append(owners, uid)
		}
	case *corev1.Endpoints:
		owners = append(owners, serviceUID(object.Namespace, object.Name))
	case *networkingv1.IPAddress:
		if ref := object.Spec.ParentRef; ref != nil && ref.Resource == "services" {
			owners = append(owners, serviceUID(ref.Namespace, ref.Name))
		}
	}
	return owners
}

func serviceUID(namespace, name string) string { return "services/" + namespace + "/" + name }

// decide leaves out what nothing defines any more, and what belongs only to objects that
// are left out.
func (o *objects) decide() {
	defined := map[schema.GroupKind]bool{}
	for _, kind := range o.defined {
		defined[kind] = true
	}
	out := map[string]string{}
	for _, f := range o.found {
		if f.reason == "" && f.custom && !defined[f.kind.GroupKind()] {
			f.reason = fmt.Sprintf("Kubernetes %s has no kind %s of %s, and no CustomResourceDefinition defines it", release(), f.kind.Kind, f.kind.GroupVersion())
		}
	}
	for again := true; again; {
		again = false
		for _, f := range o.found {
			if f.reason == "" && len(f.owners) > 0 && !slices.ContainsFunc(f.owners, func(uid string) bool { return out[uid] == "" }) {
				f.reason = out[f.owners[0]]
			}
			if f.reason == "" {
				continue
			}
			uid := f.uid
			if f.kind.GroupKind() == serviceKind {
				uid = serviceUID(f.namespace, f.name)
			}
			for _, uid := range []string{f.uid, uid} {
				if uid != "" && out[uid] == "" {
					out[uid], again = f.reason, true
				}
			}
		}
	}
}

// taken returns the value that the new server stores, before it is encrypted.
func (o *objects) taken(ctx context.Context, key string, text []byte) ([]byte, error) {
	plain, err := o.plain(ctx, key, text)
	if err != nil {
		return nil, err
	}
	read, err := o.stored.Read(plain)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	accessor, err := metaOf(read, plain)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	if secret, ok := read.Object.(*corev1.Secret); ok && admitNodes(secret) {
		return read.Encode()
	}
	own := func(finalizer string) bool { return ownFinalizer(read.Kind.GroupKind(), finalizer) }
	if !slices.ContainsFunc(accessor.GetFinalizers(), own) {
		return plain, nil
	}
	left := slices.DeleteFunc(slices.Clone(accessor.GetFinalizers()), own)
	if read.Object == nil {
		return withFinalizers(plain, left)
	}
	accessor.SetFinalizers(left)
	return read.Encode()
}

// admitNodes lets nodes join kedge with a bootstrap token with which they could join k3s.
// It returns true if it has changed the Secret.
func admitNodes(secret *corev1.Secret) bool {
	groups := strings.Split(string(secret.Data[bootstrapapi.BootstrapTokenExtraGroupsKey]), ",")
	if secret.Type != bootstrapapi.SecretTypeBootstrapToken || !slices.Contains(groups, k3sNewcomers) || slices.Contains(groups, join.NewcomersGroup) {
		return false
	}
	secret.Data[bootstrapapi.BootstrapTokenExtraGroupsKey] = []byte(strings.Join(append(groups, join.NewcomersGroup), ","))
	return true
}

// ownFinalizer tells whether a finalizer waits for a controller of k3s. With such a
// finalizer, the object could never be deleted.
func ownFinalizer(kind schema.GroupKind, finalizer string) bool {
	switch {
	case kind.Group == "helm.cattle.io", kind.Group == "k3s.cattle.io":
		return strings.HasPrefix(finalizer, "wrangler.cattle.io/")
	case kind == nodeKind:
		return slices.Contains([]string{
			"wrangler.cattle.io/node", "wrangler.cattle.io/managed-etcd-controller", "wrangler.cattle.io/cisnetworkpolicy-node",
		}, finalizer)
	case kind == serviceKind:
		return finalizer == "svccontroller.k3s.cattle.io/daemonset" || finalizer == "service.kubernetes.io/load-balancer-cleanup"
	}
	return false
}

// withFinalizers returns a custom resource with other finalizers.
func withFinalizers(text []byte, finalizers []string) ([]byte, error) {
	var object, metadata map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(object["metadata"], &metadata); err != nil {
		return nil, err
	}
	delete(metadata, "finalizers")
	var err error
	if len(finalizers) > 0 {
		if metadata["finalizers"], err = json.Marshal(finalizers); err != nil {
			return nil, err
		}
	}
	if object["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, err
	}
	return json.Marshal(object)
}

// release is kedge's version of Kubernetes without the patch: v1.37.
func release() string {
	parts := strings.SplitN(version.Version, ".", 3)
	return strings.Join(parts[:min(2, len(parts))], ".")
}
