package controlplane

import (
	"context"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// testOpenAPI reads the documents of built-in types, and of custom types that
// come and go.
func testOpenAPI(ctx context.Context, t *testing.T, plane *plane, admin kubernetes.Interface) {
	document := func(path string) (string, error) {
		text, err := admin.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
		return string(text), err
	}
	for path, want := range map[string]string{
		"/openapi/v2":              "io.k8s.api.apps.v1.Deployment",
		"/openapi/v3":              "apis/apps/v1?hash=",
		"/openapi/v3/apis/apps/v1": "io.k8s.api.apps.v1.Deployment",
		"/openapi/v3/apis/apiextensions.k8s.io/v1":   "v1.CustomResourceDefinition",
		"/openapi/v3/apis/apiregistration.k8s.io/v1": "v1.APIService",
	} {
		// The aggregator asks the other servers for their documents once a
		// second.
		eventually(ctx, t, path, func() (bool, error) {
			text, err := document(path)
			return strings.Contains(text, want), err
		})
	}
	client, err := apiextensions.NewForConfig(plane.api.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	_, err = definitions.Create(ctx, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sparrows.birds.example"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "birds.example", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "sparrows", Kind: "Sparrow"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Description: "It sings."}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	both := func(want bool) {
		for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/birds.example/v1"} {
			eventually(ctx, t, path, func() (bool, error) {
				text, err := document(path)
				return strings.Contains(text, "It sings.") == want, err
			})
		}
	}
	both(true)
	if err := definitions.Delete(ctx, "sparrows.birds.example", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	both(false)
	if text, err := document("/openapi/v2"); err != nil || strings.Contains(text, "ObjectMeta_v2") {
		t.Errorf("types were renamed: %v", err)
	}
}
