package addons

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/manifests"
)

// TestManifests decodes every object strictly, as the API server would, and wants
// the role of each binding to exist.
func TestManifests(t *testing.T) {
	dual := config.Default().Cluster
	dual.ServiceCIDR = []string{"10.43.0.0/16", "fd43::/112"}
	objects, err := New(Config{Cluster: dual, RuntimeClasses: []string{"crun"}}).objects()
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), apiextensionsv1.AddToScheme(known), apiregistrationv1.AddToScheme(known), snapshotv1.AddToScheme(known), gwv1.Install(known)); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	roles, kubeDNS := map[string]bool{}, (*corev1.Service)(nil)
	for _, object := range objects {
		if kind := object.GetKind(); kind == "ClusterRole" || kind == "Role" {
			roles[kind+"/"+object.GetName()] = true
		}
	}
	for _, object := range objects {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		typed, _, err := decoder.Decode(raw, nil, nil)
		if err != nil {
			t.Errorf("decode %s %s: %v", object.GetKind(), object.GetName(), err)
			continue
		}
		// These are Kubernetes' own roles.
		upstream := []string{"cluster-admin", "system:kubelet-api-admin"}
		switch typed := typed.(type) {
		case *rbacv1.ClusterRoleBinding:
			if !roles["ClusterRole/"+typed.RoleRef.Name] && !slices.Contains(upstream, typed.RoleRef.Name) {
				t.Errorf("%s binds to a ClusterRole %s that is not there", typed.Name, typed.RoleRef.Name)
			}
		case *rbacv1.RoleBinding:
			if !roles["Role/"+typed.RoleRef.Name] {
				t.Errorf("%s binds to a Role %s that is not there", typed.Name, typed.RoleRef.Name)
			}
		case *corev1.Service:
			kubeDNS = typed
		}
	}
	if kubeDNS == nil || kubeDNS.Spec.ClusterIP != "10.43.0.10" ||
		!slices.Equal(kubeDNS.Spec.ClusterIPs, []string{"10.43.0.10", "fd43::a"}) ||
		!slices.Equal(kubeDNS.Spec.IPFamilies, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}) ||
		*kubeDNS.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack || len(kubeDNS.Spec.Ports) != 2 {
		t.Errorf("unexpected kube-dns: %+v", kubeDNS)
	}
	if files, err := fs.Glob(manifests.Files, "*.yaml"); err != nil || len(files) < 2 {
		t.Errorf("only %v embedded", files)
	}
}

func newFake() *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Version: "v1", Resource: "nodes"}:                                      "NodeList",
		{Version: "v1", Resource: "services"}:                                   "ServiceList",
		{Group: "networking.k8s.io", Version: "v1", Resource: "ingressclasses"}: "IngressClassList",
		{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}:    "StorageClassList",
	})
}

// TestRun has an API server that is not quite ready, and a Service with another
// address. The new address is taken at first: the Service must stay until it is free.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake()
		var log []string
		attempts, tried := map[string]int{}, 0
		client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			gr := action.GetResource().GroupResource()
			switch action := action.(type) {
			case clienttesting.GetActionImpl:
				if gr.Resource == "services" {
					return true, &unstructured.Unstructured{}, nil
				}
				return true, nil, apierrors.NewNotFound(gr, "")
			case clienttesting.ListAction:
				return false, nil, nil
			case clienttesting.DeleteAction:
				log = append(log, "delete "+gr.String()+" "+action.GetNamespace()+"/"+action.GetName())
				return true, nil, nil
			case clienttesting.CreateActionImpl:
				if tried++; !slices.Equal(action.CreateOptions.DryRun, []string{metav1.DryRunAll}) || len(log) > 0 && strings.HasPrefix(log[len(log)-1], "delete services") {
					t.Errorf("%s was created with %+v after %v", gr.String(), action.CreateOptions, log)
				}
				if tried < 3 {
					return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonInvalid, Message: "provided IP is already allocated"}}
				}
				return true, &unstructured.Unstructured{}, nil
			case clienttesting.PatchAction:
				key := gr.String() + " " + action.GetNamespace() + "/" + action.GetName()
				attempts[key]++
				if options := action.(clienttesting.PatchActionImpl).PatchOptions; options.FieldManager != "kedge" || options.Force == nil || !*options.Force {
					t.Errorf("%s applied with %+v", key, options)
				}
				switch {
				case action.GetNamespace() != "" && attempts[key] < 3:
					return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, action.GetNamespace())
				case gr.Resource == "services" && tried < 3:
					return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid}}
				}
				log = append(log, "apply "+key)
				return true, &unstructured.Unstructured{}, nil
			}
			t.Errorf("unexpected %v", action)
			return true, nil, nil
		})
		addons := New(Config{Cluster: config.Default().Cluster, RuntimeClasses: []string{"crun"}})
		addons.client, addons.metadata = client, newMetadata(t, asItIs)
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- addons.Run(ctx, func() { close(ready) }) }()
		<-ready
		// The address is free after some attempts, and the kinds of the Gateway API come later.
		time.Sleep(2 * lastRetry)
		synctest.Wait()
		for _, want := range []string{
			"apply clusterrolebindings.rbac.authorization.k8s.io /kedge:cluster-admins",
			"apply runtimeclasses.node.k8s.io /crun",
			"apply services kube-system/kube-dns",
		} {
			if i := slices.Index(log, want); i < 0 || slices.Contains(log[i+1:], want) {
				t.Errorf("not once: %s in %v", want, log)
			}
		}
		if i := slices.Index(log, "delete services kube-system/kube-dns"); i < 0 || !slices.Contains(log[i:], "apply services kube-system/kube-dns") {
			t.Errorf("got %v, want kube-dns to be deleted and created again", log)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRunCancelled ends while the API refuses requests.
func TestRunCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newFake()
		client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("not yet")
		})
		addons := New(Config{Cluster: config.Default().Cluster})
		addons.client, addons.metadata = client, newMetadata(t, asItIs)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- addons.Run(ctx, func() { t.Error("ready") }) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRunBehindWebhook starts again on a cluster whose webhook refuses every
// write because its pod is not running yet.
func TestRunBehindWebhook(t *testing.T) {
	cluster := config.Default().Cluster
	objects, err := New(Config{Cluster: cluster}).objects()
	if err != nil {
		t.Fatal(err)
	}
	live := map[string]*unstructured.Unstructured{}
	for _, object := range objects {
		object.SetUID("some")
		if err := unstructured.SetNestedField(object.Object, "own", "metadata", "labels", "user"); err != nil {
			t.Fatal(err)
		}
		live[object.GetKind()+" "+object.GetName()] = object
	}
	old := live["ClusterRole system:kedge:dns"]
	old.SetAnnotations(map[string]string{digestAnnotation: "of an older kedge"})
	revoked := live["ClusterRoleBinding kedge:cluster-admins"]
	revoked.SetAnnotations(map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"})
	delete(revoked.Object, "subjects")

	synctest.Test(t, func(t *testing.T) {
		var refusing atomic.Bool
		refusing.Store(true)
		var writes atomic.Value
		client := newFake()
		client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			switch action := action.(type) {
			case clienttesting.GetActionImpl:
				for _, object := range live {
					resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
					if resource == action.GetResource() && object.GetName() == action.GetName() {
						return true, object, nil
					}
				}
				return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), action.GetName())
			case clienttesting.PatchAction:
				if refusing.Load() {
					return true, nil, apierrors.NewInternalError(errors.New("failed calling webhook"))
				}
				before, _ := writes.Load().(string)
				writes.Store(before + action.GetName() + " ")
				return true, &unstructured.Unstructured{}, nil
			}
			t.Errorf("unexpected %v", action)
			return true, nil, nil
		})
		addons := New(Config{Cluster: cluster})
		addons.client, addons.metadata = client, newMetadata(t, asItIs)
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- addons.Run(ctx, func() { close(ready) }) }()
		<-ready
		refusing.Store(false)
		time.Sleep(2 * lastRetry)
		synctest.Wait()
		if got := writes.Load(); got != "system:kedge:dns " {
			t.Errorf("applied %q, want what was out of date alone", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestIncludes(t *testing.T) {
	live := map[string]any{"a": int64(1), "list": []any{map[string]any{"x": "y", "default": true}}}
	tests := map[string]struct {
		wanted any
		want   bool
	}{
		"part":           {map[string]any{"list": []any{map[string]any{"x": "y"}}}, true},
		"other value":    {map[string]any{"a": int64(2)}, false},
		"missing key":    {map[string]any{"b": int64(1)}, false},
		"shorter list":   {map[string]any{"list": []any{}}, false},
		"other element":  {map[string]any{"list": []any{map[string]any{"x": "z"}}}, false},
		"another's type": {map[string]any{"a": map[string]any{}}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := includes(live, test.wanted); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestLeaveAddresses wants a trial of a Service to ask only for the addresses that the
// Service does not have yet.
func TestLeaveAddresses(t *testing.T) {
	service := func(addresses ...any) *unstructured.Unstructured {
		spec := map[string]any{"ports": []any{}}
		if len(addresses) > 0 {
			spec["clusterIP"], spec["clusterIPs"] = addresses[0], addresses
		}
		return &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	}
	for name, test := range map[string]struct{ wanted, live, want *unstructured.Unstructured }{
		"another one":    {service("10.43.0.11"), service("10.43.0.10"), service("10.43.0.11")},
		"one more":       {service("10.43.0.10", "fd43::a"), service("10.43.0.10"), service("fd43::a")},
		"the same":       {service("10.43.0.10"), service("10.43.0.10"), service()},
		"not a Service":  {service(), service("10.43.0.10"), service()},
		"two other ones": {service("10.43.0.11", "fd43::b"), service("10.43.0.10", "fd43::a"), service("10.43.0.11", "fd43::b")},
	} {
		if err := leaveAddresses(test.wanted, test.live); err != nil || !equality.Semantic.DeepEqual(test.wanted, test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, test.wanted, err, test.want)
		}
	}
}
