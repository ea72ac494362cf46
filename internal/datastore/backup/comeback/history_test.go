package comeback

import (
	"testing"

	"github.com/kedge-dev/kedge/internal/base/deletion"
)

// TestWriter checks who is said to have written a version, also if several have written within one second.
func TestWriter(t *testing.T) {
	entry := func(manager, time, field string) any {
		return map[string]any{"manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:" + field: map[string]any{}}}
	}
	object := func(entries ...any) map[string]any {
		return map[string]any{"metadata": map[string]any{"managedFields": entries}}
	}
	const first, second = "2026-11-30T04:15:30Z", "2026-11-30T04:15:33Z"
	user, controller := entry("kubectl", first, "spec"), entry("kedge", first, "status")
	for name, test := range map[string]struct {
		old, now map[string]any
		want     string
	}{
		"a new object":              {nil, object(user), "kubectl"},
		"in the same second":        {object(user), object(controller, user), "kedge"},
		"the other way round":       {object(controller), object(user, controller), "kubectl"},
		"a later change":            {object(user, controller), object(user, entry("kedge", second, "status")), "kedge"},
		"a value without new field": {object(user, controller), object(entry("kubectl", second, "spec"), controller), "kubectl"},
		"nothing to tell it":        {object(user, controller), object(user, controller), "kedge"},
		"no managers":               {nil, object(), ""},
	} {
		if got := writer(test.old, test.now); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestMatches checks which keys belong to an object, those of notes about its deletion among them.
func TestMatches(t *testing.T) {
	service, node := Object{"service", "default", "web"}, Object{"node", "default", "web"}
	for key, want := range map[string]struct{ service, node bool }{
		"/registry/services/specs/default/web":              {service: true},
		"/registry/services/specs/other/web":                {},
		"/registry/services/endpoints/default/web":          {},
		"/registry/minions/web":                             {node: true},
		"/registry/pods/default/web":                        {},
		deletion.Key("services", "default", "web", "u1"):    {service: true},
		deletion.Key("services", "default", "other", "web"): {},
		deletion.Key("services", "other", "web", "u1"):      {},
		deletion.Key("nodes", "", "web", "u1"):              {node: true},
		"/kedge/settings":                                   {},
	} {
		if got := service.matches(key); got != want.service {
			t.Errorf("%s: got %t for the Service", key, got)
		}
		if got := node.matches(key); got != want.node {
			t.Errorf("%s: got %t for the Node", key, got)
		}
	}
}

// TestDeleters checks who is said to have deleted an object.
func TestDeleters(t *testing.T) {
	object := func(uid string) map[string]any { return map[string]any{"metadata": map[string]any{"uid": uid}} }
	asked := deleters{{"u1", "alice"}, {"u2", "bob"}}
	for name, test := range map[string]struct {
		object map[string]any
		want   string
	}{
		"the first":    {object("u1"), "alice"},
		"the second":   {object("u2"), "bob"},
		"nobody asked": {object("u3"), ""},
		"encrypted":    {map[string]any{}, "alice"},
	} {
		if got := asked.of(test.object); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
