package why

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// Clients are how the API is asked, with the rights of the user.
type Clients struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
	// Summary returns what the kubelet of a node measures. It may be nil.
	Summary func(ctx context.Context, node string) (*stats.Summary, error)
	// Now returns the time. It is time.Now outside of tests.
	Now func() time.Time
}

// world is what rules read. Each thing is read once. A rule that may not read something sees nothing there, and the report names it. After any other
// error, fault is set and the report is worth nothing.
type world struct {
	Clients
	ctx   context.Context
	memo  map[string]any
	fault error
	// many is true if many objects are looked at. Then the Events of a namespace are read at once.
	many bool
	// logs is how many logs were read.
	logs int
	// hidden are the kinds that the user may not read.
	hidden map[string]bool
}

func newWorld(ctx context.Context, clients Clients) *world {
	return &world{Clients: clients, ctx: ctx, memo: map[string]any{}, hidden: map[string]bool{}}
}

// getter is what each typed client of client-go has.
type getter[T any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}

// lister is what each typed client of client-go has.
type lister[L any] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// read answers a question once. key is the kind of what is read, and, after a "|", which one. It returns false if there is no answer for this user.
func read[T any](w *world, key string, ask func() (T, error)) (answer T, ok bool) {
	if known, ok := w.memo[key]; ok {
		answer, ok := known.(T)
		return answer, ok
	}
	answer, err := ask()
	switch {
	case err == nil:
		w.memo[key] = answer
		return answer, true
	case apierrors.IsNotFound(err):
	case apierrors.IsForbidden(err):
		kind, _, _ := strings.Cut(key, "|")
		w.hidden[kind] = true
	case w.fault == nil:
		w.fault = fmt.Errorf("read %s: %w", strings.Replace(key, "|", " ", 1), err)
	}
	w.memo[key] = nil
	var nothing T
	return nothing, false
}

// get returns an object, and whether there is one. kind is a word that a user knows.
func get[T any](w *world, client getter[T], kind, namespace, name string) (T, bool) {
	return read(w, fmt.Sprintf("%s|%s/%s", kind, namespace, name), func() (T, error) { return client.Get(w.ctx, name, metav1.GetOptions{}) })
}

// list returns objects, and whether the user may read them.
func list[L any](w *world, client lister[L], kinds, namespace string) (L, bool) {
	return read(w, fmt.Sprintf("%s|%s", kinds, namespace), func() (L, error) {
		// The watch cache answers, and that is new enough for people.
		return client.List(w.ctx, metav1.ListOptions{ResourceVersion: "0"})
	})
}

// isHidden tells whether the user may not read a kind, so that what was not found may be there.
func (w *world) isHidden(kind string) bool { return w.hidden[kind] }

// unread returns a sentence for each kind that the user may not read.
func (w *world) unread() (sentences []string) {
	for _, kind := range slices.Sorted(maps.Keys(w.hidden)) {
		sentences = append(sentences, fmt.Sprintf("You may not read %s, so what they would tell is missing here.", kind))
	}
	return sentences
}

// events returns the Events of an object, the newest first.
func (w *world) events(namespace string, uid types.UID) []corev1.Event {
	key, options := string(uid), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(uid)}
	if w.many {
		key, options = namespace, metav1.ListOptions{ResourceVersion: "0"}
	}
	byObject, _ := read(w, "Events|"+key, func() (map[types.UID][]corev1.Event, error) {
		all, err := w.Kubernetes.CoreV1().Events(namespace).List(w.ctx, options)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(all.Items, func(a, b corev1.Event) int { return events.Seen(&b).Compare(events.Seen(&a)) })
		byObject := map[types.UID][]corev1.Event{}
		for _, e := range all.Items {
			byObject[e.InvolvedObject.UID] = append(byObject[e.InvolvedObject.UID], e)
		}
		return byObject, nil
	})
	return byObject[uid]
}

// warning returns the newest Event of type Warning with one of the reasons, or nil.
func (w *world) warning(object metav1.Object, reasons ...string) *corev1.Event {
	for _, event := range w.events(object.GetNamespace(), object.GetUID()) {
		if event.Source.Component != Author && event.Type == corev1.EventTypeWarning && (len(reasons) == 0 || slices.Contains(reasons, event.Reason)) {
			return &event
		}
	}
	return nil
}

// event tells whether an Event with a reason happened at a time or later.
func (w *world) event(object metav1.Object, reason string, since time.Time) bool {
	return slices.ContainsFunc(w.events(object.GetNamespace(), object.GetUID()), func(e corev1.Event) bool {
		return e.Reason == reason && !events.Seen(&e).Before(since)
	})
}

// AskSummary asks the kubelet of a node, by way of the API. core is a client of the core API. It is Clients.Summary.
func AskSummary(core rest.Interface) func(ctx context.Context, node string) (*stats.Summary, error) {
	return func(ctx context.Context, node string) (*stats.Summary, error) {
		text, err := core.Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		var summary stats.Summary
		if err := json.Unmarshal(text, &summary); err != nil {
			return nil, fmt.Errorf("read statistics of node %s: %w", node, err)
		}
		return &summary, nil
	}
}

// volumeStats returns what a pod's node measures of a claim's volume, or nil. Most users may not ask nodes, and a node may
// not answer. Then nobody knows, and nothing is said.
func (w *world) volumeStats(pod *corev1.Pod, claim string) *stats.VolumeStats {
	if w.Summary == nil || pod.Spec.NodeName == "" {
		return nil
	}
	summary, _ := read(w, "statistics|"+pod.Spec.NodeName, func() (*stats.Summary, error) {
		summary, err := w.Summary(w.ctx, pod.Spec.NodeName)
		if err != nil {
			summary = nil
		}
		return summary, nil
	})
	if summary == nil {
		return nil
	}
	for _, p := range summary.Pods {
		if p.PodRef.Namespace != pod.Namespace || p.PodRef.Name != pod.Name {
			continue
		}
		for i := range p.VolumeStats {
			if v := &p.VolumeStats[i]; v.PVCRef != nil && v.PVCRef.Name == claim {
				return v
			}
		}
	}
	return nil
}
