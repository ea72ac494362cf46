package manifests

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestRemove removes the fields at every kind of path that structured-merge-diff
// writes.
func TestRemove(t *testing.T) {
	const object = `{"data": {"a": "1", "a.b": "2", "a.b[0]": "3"}, "spec": {"replicas": 1,
		"containers": [{"name": "x,y]=\"", "image": "i"}, {"name": "web", "image": "j", "ports": [{"port": 80}, {"port": 81, "protocol": "UDP"}]}],
		"finalizers": ["f", "g"], "atomic": [[1], [2]]}}`
	for path, gone := range map[string]string{
		`.data.a`:                                `"a":"1",`,
		`.data.a.b`:                              `"a.b":"2",`,
		`.data.a.b[0]`:                           `,"a.b[0]":"3"`,
		`.spec.replicas`:                         `,"replicas":1`,
		`.spec.atomic[1]`:                        `,[2]`,
		`.spec.finalizers[="g"]`:                 `,"g"`,
		`.spec.containers[name="x,y]=\""].image`: `"image":"i",`,
		`.spec.containers[name="web"].image`:     `"image":"j",`,
		`.spec.containers[name="web"].ports[port=80,protocol="TCP"]`:          `{"port":80},`,
		`.spec.containers[name="web"].ports[port=81,protocol="UDP"].protocol`: `,"protocol":"UDP"`,
		`.spec.none`:                                  ``,
		`.spec.containers[name="none"].image`:         ``,
		`.spec.containers[name="web"].ports[port=82]`: ``,
		`.spec.containers[name="web"`:                 ``,
		`.spec.containers[`:                           ``,
		`.spec.finalizers[7]`:                         ``,
		`.data[0]`:                                    ``,
	} {
		value := map[string]any{}
		if err := json.Unmarshal([]byte(object), &value); err != nil {
			t.Fatal(err)
		}
		before, _ := json.Marshal(value)
		if removed := remove(value, path); removed != (gone != "") {
			t.Errorf("%s: removed is %v", path, removed)
		}
		after, _ := json.Marshal(value)
		if want := strings.Replace(string(before), gone, "", 1); string(after) != want {
			t.Errorf("%s: got %s, want %s", path, after, want)
		}
	}
}

func TestWithoutConflicts(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"kind": "ConfigMap", "metadata": map[string]any{"name": "web"}, "data": map[string]any{"a": "1", "b": "2"},
	}}
	conflict := func(fields ...string) error {
		status := metav1.Status{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Details: &metav1.StatusDetails{}}
		for _, field := range fields {
			status.Details.Causes = append(status.Details.Causes, metav1.StatusCause{
				Type: metav1.CauseTypeFieldManagerConflict, Field: field, Message: `conflict with "kubectl-edit" using v1`,
			})
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	lesser, left := withoutConflicts(object, conflict(".data.a"))
	if lesser == nil || len(left) != 1 || !strings.Contains(left[0], "ConfigMap web: .data.a") || !strings.Contains(left[0], "kubectl-edit") {
		t.Fatalf("got fields %q of %v, want .data.a of kubectl-edit", left, lesser)
	}
	if data, _, _ := unstructured.NestedMap(lesser.Object, "data"); len(data) != 1 || data["b"] != "2" {
		t.Errorf("applied is %v", data)
	}
	if data, _, _ := unstructured.NestedMap(object.Object, "data"); len(data) != 2 {
		t.Errorf("the file's object was changed to %v", data)
	}
	for name, refusal := range map[string]error{
		"success":         nil,
		"another error":   errors.New("no"),
		"unknown field":   conflict(".data.a", ".data.c"),
		"another version": apierrors.NewConflict(configMaps.GroupResource(), "web", errors.New("modified")),
	} {
		if lesser, _ := withoutConflicts(object, refusal); lesser != nil && name != "another version" {
			t.Errorf("%s: %v is applied", name, lesser)
		}
	}
}
