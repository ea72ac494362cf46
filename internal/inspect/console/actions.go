package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// action is something that the user can change from the page. There are no others.
type action struct {
	Name  string
	Title string
	// Ask is the question before it is done.
	Ask string
	// Number is true if it takes a number.
	Number bool
	kinds  []string
	do     func(c *Console, r *http.Request) error
}

var actions = []action{
	{
		Name: "delete", Title: "Delete", kinds: []string{"pod"},
		Ask: "The pod is stopped and deleted. If a Deployment or another workload owns it, a new one takes its place. Otherwise it is gone.",
		do: func(c *Console, r *http.Request) error {
			return c.Clients.Kubernetes.CoreV1().Pods(r.PathValue("namespace")).Delete(r.Context(), r.PathValue("name"), metav1.DeleteOptions{})
		},
	},
	{
		Name: "restart", Title: "Restart", kinds: []string{"deployment", "statefulset", "daemonset"},
		Ask: "New pods take the place of all pods, one after the other, as `kubectl rollout restart` does.",
		do: func(c *Console, r *http.Request) error {
			at := map[string]string{"kubectl.kubernetes.io/restartedAt": c.Clients.Now().UTC().Format(time.RFC3339)}
			return c.patch(r.Context(), r, map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": at}}})
		},
	},
	{
		Name: "scale", Title: "Scale", kinds: []string{"deployment", "statefulset"}, Number: true,
		Ask: "This many pods run from now on. An autoscaler may change the number again.",
		do: func(c *Console, r *http.Request) error {
			n, err := number(r, "number")
			if err != nil {
				return err
			}
			return c.patch(r.Context(), r, map[string]any{"replicas": n})
		},
	},
	{
		Name: "cordon", Title: "Cordon", kinds: []string{"node"},
		Ask: "No new pods come to the node. Those that are there go on.",
		do:  func(c *Console, r *http.Request) error { return c.cordon(r, true) },
	},
	{
		Name: "uncordon", Title: "Uncordon", kinds: []string{"node"},
		Ask: "New pods may come to the node again.",
		do:  func(c *Console, r *http.Request) error { return c.cordon(r, false) },
	},
}

// actionsOf returns what can be done with objects of a kind.
func actionsOf(kind string) (fit []action) {
	for _, a := range actions {
		if slices.Contains(a.kinds, kind) {
			fit = append(fit, a)
		}
	}
	return fit
}

// asked returns the action that a request is about.
func asked(r *http.Request) (found action, object string, ok bool) {
	kind, back := r.PathValue("kind"), path("namespaces", r.PathValue("namespace"), r.PathValue("kind"), r.PathValue("name"))
	if kind == "" {
		kind, back = "node", path("nodes", r.PathValue("name"))
	}
	for _, a := range actionsOf(kind) {
		if a.Name == r.PathValue("action") {
			return a, back, true
		}
	}
	return action{}, "", false
}

// question asks before something is changed.
var question = view{"question", func(v *visit) string {
	a, _, _ := asked(v.request)
	return a.Title + " " + v.value("name")
}, func(v *visit) any {
	a, back, ok := asked(v.request)
	if !ok {
		return nil
	}
	return struct {
		action
		Object, Back string
	}{a, v.value("name"), back}
}}

// do changes something, and leads back to the object.
func (c *Console) do(w http.ResponseWriter, r *http.Request) {
	a, back, ok := asked(r)
	if !ok {
		http.NotFound(w, r)
		return
	}
	if err := a.do(c, r); err != nil {
		c.answer(w, http.StatusConflict, shown{Title: a.Title, Cluster: c.Cluster, Path: r.URL.Path, Fault: err.Error()})
		return
	}
	c.Log.Infof("%s %s", a.Title, r.PathValue("name"))
	if a.Name == "delete" {
		back = path("namespaces", r.PathValue("namespace"))
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}

// patch changes the spec of a workload.
func (c *Console) patch(ctx context.Context, r *http.Request, spec map[string]any) error {
	resource, known := kinds[r.PathValue("kind")]
	if !known {
		return fmt.Errorf("there is no page for a %s", r.PathValue("kind"))
	}
	text, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("write change: %w", err)
	}
	_, err = c.Clients.Dynamic.Resource(resource).Namespace(r.PathValue("namespace")).Patch(ctx, r.PathValue("name"), types.MergePatchType, text, metav1.PatchOptions{FieldManager: manager})
	return err
}

// cordon lets pods come to a node, or not.
func (c *Console) cordon(r *http.Request, closed bool) error {
	text := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed)
	_, err := c.Clients.Kubernetes.CoreV1().Nodes().Patch(r.Context(), r.PathValue("name"), types.MergePatchType, text, metav1.PatchOptions{FieldManager: manager})
	return err
}

// manager is who the API notes as the author of a change.
const manager = "kedge-console"
