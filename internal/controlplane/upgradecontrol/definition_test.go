package upgradecontrol

import (
	"bytes"
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	definitions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/manifests"
)

// definition returns the definition of Plans, as the API server reads it.
func definition(t *testing.T) *apiextensions.CustomResourceDefinition {
	t.Helper()
	text, err := manifests.Files.ReadFile("upgrade.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096).Decode(&fields); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	encoded, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(encoded); err != nil {
		t.Fatal(err)
	}
	versioned, err := scheme.New(object.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, versioned); err != nil {
		t.Fatal(err)
	}
	scheme.Default(versioned)
	internal := &apiextensions.CustomResourceDefinition{}
	if err := scheme.Convert(versioned, internal, nil); err != nil {
		t.Fatal(err)
	}
	internal.Status.StoredVersions = []string{"v1alpha1"}
	return internal
}

// TestDefinition accepts and refuses Plans as the API server does.
func TestDefinition(t *testing.T) {
	d := definition(t)
	if faults := definitions.ValidateCustomResourceDefinition(t.Context(), d); len(faults) > 0 {
		t.Fatal(faults)
	}
	props := d.Spec.Validation.OpenAPIV3Schema
	schema, err := structural.NewStructural(props)
	if err != nil {
		t.Fatal(err)
	}
	validator, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	rules := cel.NewValidator(schema, true, celconfig.PerCallLimit)
	check := func(object map[string]any) string {
		faults := validation.ValidateCustomResource(nil, object, validator)
		ofRules, _ := rules.Validate(context.Background(), nil, schema, object, nil, celconfig.RuntimeCELCostBudget)
		var all []string
		for _, fault := range slices.Concat(faults, ofRules) {
			all = append(all, fault.Error())
		}
		return strings.Join(all, "; ")
	}
	digest := strings.Repeat("0a", 32)
	for spec, want := range map[string]string{
		`{"version":"v1.37.2+kedge.2"}`:                                           "",
		`{"version":"v1.37.2-rc.1+kedge.2"}`:                                      "",
		`{"channel":"https://example.com/stable","source":"https://example.com"}`: "",
		`{"file":"/tmp/kedge","sha256":"` + digest + `"}`:                         "",
		`{"version":"v1.37.2","concurrency":3,"cordon":true,"drain":{},"window":{"days":["mon","tuesday","fr"],"startTime":"22:30","endTime":"04:00","timeZone":"Europe/Berlin"},"nodeSelector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}`: "",
		`{}`: "exactly one of version, channel and file",
		`{"version":"v1.37.2","channel":"https://example.com/stable"}`:        "exactly one of version, channel and file",
		`{"version":"v1.37.2","file":"/tmp/kedge","sha256":"` + digest + `"}`: "exactly one of version, channel and file",
		`{"file":"/tmp/kedge"}`:                                                                     "file needs sha256",
		`{"version":"v1.37.2","sha256":"` + digest + `"}`:                                           "file needs sha256",
		`{"file":"/tmp/kedge","sha256":"` + digest + `","source":"https://example.com"}`:            "source is for version and channel",
		`{"file":"kedge","sha256":"` + digest + `"}`:                                                "spec.file",
		`{"file":"/tmp/kedge","sha256":"` + strings.ToUpper(digest) + `"}`:                          "spec.sha256",
		`{"version":"1.37.2"}`:                                                                      "spec.version",
		`{"version":"v1.37.2/../x"}`:                                                                "spec.version",
		`{"version":"latest"}`:                                                                      "spec.version",
		`{"channel":"file:///etc/passwd"}`:                                                          "spec.channel",
		`{"version":"v1.37.2","concurrency":0}`:                                                     "spec.concurrency",
		`{"version":"v1.37.2","window":{"days":["someday"]}}`:                                       "spec.window.days",
		`{"version":"v1.37.2","window":{"startTime":"24:00"}}`:                                      "spec.window.startTime",
		`{"version":"v1.37.2","drain":{"timeoutSeconds":0}}`:                                        "spec.drain.timeoutSeconds",
		`{"version":"v1.37.2","nodeSelector":{"matchExpressions":[{"key":"a","operator":"Near"}]}}`: "operator",
	} {
		var fields map[string]any
		if err := json.Unmarshal([]byte(spec), &fields); err != nil {
			t.Fatal(err)
		}
		got := check(map[string]any{"spec": fields})
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", spec, got, want)
		}
	}

	// Nothing that the controller writes is refused or forgotten.
	now := metav1.NewTime(time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC))
	plan := upgrades.Plan{Spec: upgrades.PlanSpec{Version: target, Concurrency: 1}, Status: upgrades.PlanStatus{
		ObservedGeneration: 1, Phase: upgrades.Upgrading, Message: "x", Version: target,
		Executables: map[string]upgrades.Executable{"amd64": {SHA256: digest, Size: 1 << 29}},
		Nodes:       []upgrades.NodeStatus{{Name: "a", Architecture: "amd64", State: upgrades.NodeOrdered, Order: "1", Message: "x", Since: now}},
	}}
	setConditions(&plan.Status, now.Time)
	encoded, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var before, after map[string]any
	if err := json.Unmarshal(encoded, &before); err != nil {
		t.Fatal(err)
	}
	delete(before, "metadata")
	if err := json.Unmarshal(encoded, &after); err != nil {
		t.Fatal(err)
	}
	delete(after, "metadata")
	if got := check(after); got != "" {
		t.Errorf("what the controller writes is refused: %s", got)
	}
	pruning.Prune(after, schema, true)
	defaulting.Default(after, schema)
	if !reflect.DeepEqual(before, after) {
		t.Errorf("of %v the API keeps %v", before, after)
	}
}
