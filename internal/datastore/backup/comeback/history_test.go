package comeback

import "testing"

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
