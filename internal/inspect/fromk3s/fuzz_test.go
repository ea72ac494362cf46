package fromk3s

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzManifest reads anything as a manifest. Each object in it gets a verdict, and a sentence if it
// cannot work.
func FuzzManifest(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}}]\n", "a: [\n", "---\n---\n", "[]", "{\"kind\": 1}",
		"apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: a, namespace: b}\nspec: {helmVersion: v2}\n",
		"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a, annotations: {traefik.ingress.kubernetes.io/x: y}}\nspec: {ingressClassName: traefik}\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		i := &installation{}
		_ = i.objects("file", []byte(text))
		for _, found := range i.found {
			if found.Result == "" || found.Result == Cannot && !strings.HasSuffix(found.Says, ".") {
				t.Errorf("found %+v", found)
			}
		}
		_, _ = i.judge(&unstructured.Unstructured{Object: map[string]any{}})
	})
}
