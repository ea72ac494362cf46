package kubelet

import (
	"strings"
	"testing"
)

// TestCheckStaticPod has files of static pods that the kubelet takes, and some that it refuses.
func TestCheckStaticPod(t *testing.T) {
	k := &Kubelet{cfg: Config{NodeName: "pi"}}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: web}]}\n"
	for text, want := range map[string]string{
		pod:                      "",
		"---\n" + pod + "---\n":  "",
		"# nothing else\n" + pod: "",
		`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "main", "image": "web"}]}}`: "",

		"":                  "Object 'Kind' is missing",
		"a: [\n":            "line 1",
		pod + "---\n" + pod: "it has 2 documents, and the kubelet reads only the first",
		"apiVersion: v1\nkind: Service\nmetadata: {name: web}\n":                   `it has no Pod: the kind is Service of "v1"`,
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n":           `it has no Pod: the kind is Deployment of "apps/v1"`,
		"apiVersion: example.com/v1\nkind: Pod\nmetadata: {name: web}\n":           `it has no Pod: the kind is Pod of "example.com/v1"`,
		strings.Replace(pod, "name: web", "labels: {}", 1):                         "the pod has no metadata.name",
		strings.Replace(pod, "name: web", "name: Web_", 1):                         "metadata.name",
		strings.Replace(pod, ", image: web", "", 1):                                "spec.containers[0].image: Required value",
		strings.Replace(pod, "containers", "serviceAccountName: x, containers", 1): "the pod refers to serviceaccounts, which static pods may not",
		strings.Replace(pod, "image: web", "image: [web]", 1):                      "cannot unmarshal",
	} {
		err := k.checkStaticPod([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "0x") {
			t.Errorf("%q: %v has a pointer", text, err)
		}
	}
}
