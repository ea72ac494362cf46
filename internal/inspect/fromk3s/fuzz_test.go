package fromk3s

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzUnit reads anything as a unit of k3s's service. A flag has a name and a value.
func FuzzUnit(f *testing.F) {
	for _, text := range []string{
		"[Service]\nEnvironment='A=b'\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--disable' \\\n\t'traefik' \\\n",
		"command_args=\"agent --node-label a >>/var/log/k3s.log 2>&1\"\n", "ExecStart=k3s server -t x --config='a b' --docker -v 2 --", "ExecStart='",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := &service{unit: "unit"}
		s.read(text)
		for i, flag := range s.flags {
			if len(flag.values) == 0 || strings.HasPrefix(flag.name, "-") {
				t.Errorf("flag %+v", flag)
			}
			for _, other := range s.flags[:i] {
				if other.name == flag.name {
					t.Errorf("%s is there twice", flag.name)
				}
			}
		}
	})
}

// FuzzManifest reads anything as a manifest. What is judged has a verdict, and a sentence if
// it cannot work.
func FuzzManifest(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: policy/v1beta1, kind: PodDisruptionBudget, metadata: {name: a}}]\n", "a: [\n", "---\n---\n", "[]", "{\"kind\": 1}",
		"apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: a, namespace: b}\nspec: {helmVersion: v2}\n",
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
		_, _ = judge(&unstructured.Unstructured{Object: map[string]any{}})
	})
}
