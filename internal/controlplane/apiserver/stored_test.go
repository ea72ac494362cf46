package apiserver

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// Objects of Kubernetes's own kinds are read in all versions that this one knows, and
// written as they were. The others keep their kind only.
func TestStoredObjects(t *testing.T) {
	unknown, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "policy/v1beta1", Kind: "PodSecurityPolicy"}, Raw: []byte{1}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		text, kind string
		known      bool
	}{
		"core":        {`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","creationTimestamp":null},"data":{"a":"b"}}` + "\n", "/v1, Kind=ConfigMap", true},
		"older":       {`{"kind":"CronJob","apiVersion":"batch/v1beta1","metadata":{"name":"x"}}`, "batch/v1beta1, Kind=CronJob", true},
		"definition":  {`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"name":"x"}}`, "apiextensions.k8s.io/v1beta1, Kind=CustomResourceDefinition", true},
		"API service": {`{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"x"}}`, "apiregistration.k8s.io/v1, Kind=APIService", true},
		"custom":      {`{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"x"}}`, "example.com/v1, Kind=Widget", false},
		"removed":     {"k8s\x00" + string(unknown), "policy/v1beta1, Kind=PodSecurityPolicy", false},
	} {
		t.Run(name, func(t *testing.T) {
			read, err := NewStoredObjects().Read([]byte(test.text))
			if err != nil {
				t.Fatal(err)
			}
			if read.Kind.String() != test.kind || (read.Object != nil) != test.known || read.Fault != nil {
				t.Errorf("it is %+v, want %s, known %t", read, test.kind, test.known)
			}
			if !test.known {
				return
			}
			text, err := read.Encode()
			if err != nil || !strings.Contains(string(text), `"name":"x"`) || !strings.Contains(string(text), `"apiVersion":"`+read.Kind.GroupVersion().String()) {
				t.Errorf("it is written as %s, %v", text, err)
			}
		})
	}
	for _, text := range []string{"", "{", "k8s\x00", "k8s\x00\xff\xff", `{"health":"true"}`, `"kind"`} {
		if read, err := NewStoredObjects().Read([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, read)
		}
	}
}
