package adopt

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
)

// FuzzObject reads anything as a stored object. An object that is taken can be read again,
// and then has the same kind and name.
func FuzzObject(f *testing.F) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Finalizers: []string{"wrangler.cattle.io/node"}}}
	text, err := runtime.Encode(scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), corev1.SchemeGroupVersion), node)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, seed := range []string{
		"", "{", "k8s\x00", `{"kind":"Node","apiVersion":"v1","metadata":{"finalizers":["wrangler.cattle.io/node"]}}`,
		`{"Kind":"Node","apiVersion":"v1","metadata":{"finalizers":["wrangler.cattle.io/node"]}}`,
		`{"kind":"HelmChart","apiVersion":"helm.cattle.io/v1","metadata":{"name":"h","finalizers":["wrangler.cattle.io/x","y"]},"spec":null}`,
		`{"kind":"HelmChart","apiVersion":"helm.cattle.io/v1","metadata":null}`,
		`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","spec":{}}`,
		"k8s:enc:aescbc:v1:key:", `{"health":"true"}`,
	} {
		f.Add([]byte(seed))
	}
	cluster := config.Default().Cluster
	f.Fuzz(func(t *testing.T, text []byte) {
		const key = registry + "fuzz/x"
		o := newObjects(nil, &cluster)
		if err := o.look(t.Context(), key, text, 1); err != nil {
			return // only what is encrypted
		}
		o.decide()
		if o.found[key].reason != "" {
			return
		}
		taken, err := o.taken(t.Context(), key, text)
		if err != nil {
			t.Fatalf("take: %v", err)
		}
		again, err := apiserver.NewStoredObjects().Read(taken)
		if err != nil {
			t.Fatalf("read %q again: %v", taken, err)
		}
		accessor, err := metaOf(again, taken)
		if err != nil {
			t.Fatal(err)
		}
		f := o.found[key]
		if again.Kind != f.kind || accessor.GetName() != f.name && accessor.GetName() != "" {
			t.Errorf("%v %s became %v %s", f.kind, f.name, again.Kind, accessor.GetName())
		}
		if slices.ContainsFunc(accessor.GetFinalizers(), func(finalizer string) bool { return ownFinalizer(f.kind.GroupKind(), finalizer) }) {
			t.Errorf("it has the finalizers %v", accessor.GetFinalizers())
		}
	})
}
