package addons

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// storageClass is a StorageClass as it is in the API. isDefault is empty for a
// class without the annotation. ours tells whether kedge made the class.
func storageClass(name, isDefault string, ours bool) *unstructured.Unstructured {
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "storage.k8s.io/v1", "kind": storageClassKind, "provisioner": "local.kedge.dev"}}
	class.SetName(name)
	annotations := map[string]string{}
	if isDefault != "" {
		annotations[defaultAnnotation] = isDefault
	}
	if ours {
		annotations[digestAnnotation] = "of some kedge"
	}
	class.SetAnnotations(annotations)
	return class
}

// TestDefaultClass wants the user to decide which class is the default.
func TestDefaultClass(t *testing.T) {
	for name, test := range map[string]struct {
		live  *unstructured.Unstructured
		other string // the default annotation of another class
		want  string
	}{
		"new cluster":            {nil, "", "true"},
		"another that is none":   {nil, "false", "true"},
		"the user's own":         {nil, "true", "false"},
		"as it was":              {storageClass("local", "true", true), "true", "true"},
		"changed by the user":    {storageClass("local", "false", true), "", "false"},
		"taken away by the user": {storageClass("local", "", true), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			addons := New(Config{Cluster: config.Default().Cluster})
			client := newFake()
			if test.other != "" {
				if err := client.Tracker().Add(storageClass("other", test.other, false)); err != nil {
					t.Fatal(err)
				}
			}
			addons.client = client
			wanted := storageClass("local", "true", true)
			got, err := addons.withDefault(t.Context(), wanted, test.live)
			if err != nil {
				t.Fatal(err)
			}
			if value := got.GetAnnotations()[defaultAnnotation]; value != test.want {
				t.Errorf("default is %q, want %q", value, test.want)
			}
			if wanted.GetAnnotations()[defaultAnnotation] != "true" {
				t.Error("the manifest was changed")
			}
		})
	}
}

// TestOthersStay wants CustomResourceDefinitions and classes of the user to stay
// unchanged.
func TestOthersStay(t *testing.T) {
	if !isLeftAlone(storageClass("local", "true", false)) {
		t.Error("a user's class would be changed")
	}
	if isLeftAlone(storageClass("local", "true", true)) {
		t.Error("kedge's class would never be changed")
	}
}

// TestDisabled wants kedge's classes to be removed when local storage is disabled,
// and the user's to stay.
func TestDisabled(t *testing.T) {
	cluster := config.Default().Cluster
	cluster.Disable = []string{"local-storage"}
	addons := New(Config{Cluster: cluster})
	objects, err := addons.objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.GetKind() == storageClassKind {
			t.Errorf("StorageClass %s is applied", object.GetName())
		}
	}
	client := newFake()
	for _, class := range []*unstructured.Unstructured{storageClass("local", "true", true), storageClass("local-unlimited", "", false)} {
		if err := client.Tracker().Add(class); err != nil {
			t.Fatal(err)
		}
	}
	addons.client = client
	if err := addons.removeDisabled(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := addons.resource(storageClass("local", "", true)).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].GetName() != "local-unlimited" {
		t.Errorf("got StorageClasses %v, %v, want local-unlimited alone", left, err)
	}
}
