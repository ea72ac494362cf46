package addons

import (
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// change changes the annotations of a live definition of the Gateway API. It returns false
// if the definition is not there.
type change func(name string, annotations map[string]string) bool

func asItIs(string, map[string]string) bool  { return true }
func missing(string, map[string]string) bool { return false }

// annotated sets an annotation of the definition of HTTPRoutes. An empty value removes it.
func annotated(key, value string) change {
	return func(name string, annotations map[string]string) bool {
		if strings.HasPrefix(name, "httproutes.") {
			annotations[key] = value
			if value == "" {
				delete(annotations, key)
			}
		}
		return true
	}
}

// newMetadata returns a client for the metadata of kedge's definitions of the Gateway API
// after a change.
func newMetadata(t *testing.T, changed change) *fake.FakeMetadataClient {
	t.Helper()
	wanted, err := gatewayDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	known := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(known); err != nil {
		t.Fatal(err)
	}
	var live []runtime.Object
	for _, d := range wanted {
		annotations := map[string]string{digestAnnotation: d.digest}
		for key, value := range d.Meta.Annotations {
			annotations[key] = value
		}
		if changed(d.Meta.Name, annotations) {
			live = append(live, &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: definitionKind},
				ObjectMeta: metav1.ObjectMeta{Name: d.Meta.Name, Annotations: annotations},
			})
		}
	}
	return fake.NewSimpleMetadataClient(known, live...)
}

// TestGatewayDefinitions decodes the definitions as the API server would.
func TestGatewayDefinitions(t *testing.T) {
	all, err := gatewayDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range all {
		var typed apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(d.text, &typed); err != nil {
			t.Errorf("decode %s: %v", d.Meta.Name, err)
		}
		if typed.Annotations[channelAnnotation] != standardChannel || isNewer("v1.6.2", typed.Annotations[bundleVersionAnnotation]) {
			t.Errorf("%s has the annotations %v", d.Meta.Name, typed.Annotations)
		}
		names = append(names, typed.Spec.Names.Kind)
		if len(typed.Spec.Versions[0].Schema.OpenAPIV3Schema.Description) < 10 {
			t.Errorf("%s has no description", d.Meta.Name)
		}
	}
	want := []string{
		"BackendTLSPolicy", "GatewayClass", "Gateway", "GRPCRoute", "HTTPRoute", "ListenerSet", "ReferenceGrant",
		"TCPRoute", "TLSRoute", "UDPRoute",
	}
	if !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// TestGatewayAPI applies the definitions of the Gateway API, unless the user has others.
func TestGatewayAPI(t *testing.T) {
	class := []string{"gatewayclasses/kedge"}
	policy := []string{"validatingadmissionpolicies/safe-upgrades." + gatewayGroup, "validatingadmissionpolicybindings/safe-upgrades." + gatewayGroup}
	routes := []string{"customresourcedefinitions/httproutes." + gatewayGroup}
	for name, test := range map[string]struct {
		live change
		// definitions says how many are applied, and wants what else is.
		definitions int
		wants       []string
		says        string
	}{
		"new cluster": {missing, 10, slices.Concat(class, policy), ""},
		"as it is":    {asItIs, 0, slices.Concat(class, policy), ""},
		"of an older kedge": {
			annotated(digestAnnotation, "of an older kedge"), 1, slices.Concat(routes, class, policy), "",
		},
		"one is missing": {
			func(name string, _ map[string]string) bool { return !strings.HasPrefix(name, "httproutes.") }, 1,
			slices.Concat(routes, class, policy), "",
		},
		"newer": {
			annotated(bundleVersionAnnotation, "v1.99.0"), 0, class,
			"The CustomResourceDefinition httproutes.gateway.networking.k8s.io has version v1.99.0, and kedge has version",
		},
		"experimental": {
			annotated(channelAnnotation, "experimental"), 0, class,
			"The CustomResourceDefinition httproutes.gateway.networking.k8s.io is of the channel experimental",
		},
		"of the user": {
			annotated(digestAnnotation, ""), 0, class,
			"`kedge kubectl annotate crd httproutes.gateway.networking.k8s.io kedge.dev/manifest-digest=wanted`",
		},
		"handed over to kedge": {
			annotated(digestAnnotation, "wanted"), 1, slices.Concat(routes, class, policy), "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			said := logrustest.NewLocal(logrus.StandardLogger())
			defer said.Reset()
			applied, err := applyGatewayAPI(t, test.live, nil)
			if err != nil {
				t.Fatal(err)
			}
			count := 0
			for _, what := range applied {
				if strings.HasPrefix(what, "customresourcedefinitions/") {
					count++
				}
			}
			for _, want := range test.wants {
				if !slices.Contains(applied, want) {
					t.Errorf("it did not apply %s", want)
				}
			}
			if count != test.definitions || test.says != "" && slices.Contains(applied, policy[0]) {
				t.Errorf("it applied %q, with %d definitions", applied, count)
			}
			text := ""
			for _, entry := range said.AllEntries() {
				text += entry.Message
			}
			if (text == "") != (test.says == "") || !strings.Contains(text, test.says) {
				t.Errorf("it said %q", text)
			}
		})
	}
}

// TestGatewayAPITooOld has definitions of the user that lack the kind GatewayClass in v1, and
// definitions of kedge that the API server does not serve yet.
func TestGatewayAPITooOld(t *testing.T) {
	notFound := apierrors.NewNotFound(definitions.GroupResource(), "kedge")
	if _, err := applyGatewayAPI(t, annotated(digestAnnotation, ""), notFound); err != nil {
		t.Errorf("it would try again: %v", err)
	}
	if _, err := applyGatewayAPI(t, asItIs, notFound); err == nil {
		t.Error("it would not try again")
	}
}

// applyGatewayAPI returns what is applied to a cluster with some live definitions, in which
// fault is the answer to requests about GatewayClasses.
func applyGatewayAPI(t *testing.T, live change, fault error) (applied []string, err error) {
	t.Helper()
	a, client := New(Config{Cluster: config.Default().Cluster}), newFake()
	a.client, a.metadata = client, newMetadata(t, live)
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		resource := action.GetResource()
		if fault != nil && resource.Resource == "gatewayclasses" {
			return true, nil, fault
		}
		switch action := action.(type) {
		case clienttesting.PatchAction:
			applied = append(applied, resource.Resource+"/"+action.GetName())
			return true, &unstructured.Unstructured{}, nil
		case clienttesting.GetAction:
			return true, nil, apierrors.NewNotFound(resource.GroupResource(), action.GetName())
		}
		t.Errorf("unexpected %v", action)
		return true, nil, nil
	})
	objects, err := a.objects()
	if err != nil {
		t.Fatal(err)
	}
	_, belong := withoutGatewayAPI(objects)
	err = a.applyGatewayAPI(t.Context(), belong)
	return applied, err
}

// TestGatewayDisabled wants the classes and the policy to go, and the definitions to stay.
func TestGatewayDisabled(t *testing.T) {
	cluster := config.Default().Cluster
	cluster.Disable = []string{"traefik"}
	a, client := New(Config{Cluster: cluster}), newFake()
	a.client = client
	objects, err := a.objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.GetName() == config.GatewayClass || strings.HasSuffix(object.GetName(), gatewayGroup) {
			t.Errorf("%s %s is applied", object.GetKind(), object.GetName())
		}
	}
	var deleted []string
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action := action.(type) {
		case clienttesting.DeleteAction:
			deleted = append(deleted, action.GetResource().Resource)
		case clienttesting.GetAction:
			live := &unstructured.Unstructured{Object: map[string]any{}}
			live.SetAnnotations(map[string]string{digestAnnotation: "of some kedge"})
			return true, live, nil
		}
		return true, &unstructured.UnstructuredList{}, nil
	})
	if err := a.removeDisabled(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ingressclasses", "gatewayclasses", "validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		if !slices.Contains(deleted, want) {
			t.Errorf("%s stay: deleted are %q", want, deleted)
		}
	}
	if slices.Contains(deleted, definitions.Resource) {
		t.Error("definitions are deleted, and with them the user's objects")
	}
}

// TestDefinitionsAreNotReplaced has an API server that refuses a change of a definition.
func TestDefinitionsAreNotReplaced(t *testing.T) {
	a, client := New(Config{Cluster: config.Default().Cluster}), newFake()
	a.client = client
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action.GetVerb() {
		case "get":
			live := &unstructured.Unstructured{Object: map[string]any{"kind": definitionKind}}
			live.SetAnnotations(map[string]string{digestAnnotation: "of some kedge"})
			return true, live, nil
		case "patch":
			return true, nil, apierrors.NewInvalid(definitions.GroupVersion().WithKind(definitionKind).GroupKind(), "x", nil)
		}
		t.Errorf("unexpected %v", action)
		return true, nil, nil
	})
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": definitionKind, "spec": map[string]any{}}}
	object.SetName("x")
	if _, err := a.apply(t.Context(), object); !apierrors.IsInvalid(err) {
		t.Errorf("got %v", err)
	}
}
