// Package lastresort writes Events on objects that do not work for a cause that nothing else in Kubernetes says, such as a Service whose selector
// matches no pod. So `kubectl describe` and `kubectl get events` say it to users who do not know `kedge why`. The causes are those of package why.
// The server package runs it on the elected server.
//
// An Event is read by the users of its namespace. So the rules read what a user of that namespace may read, and nothing else: see fence.go.
package lastresort

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// User is who calls the API. Its rights are in /manifests/rbac.yaml.
const User = "system:kedge:last-resort"

const (
	// settling is the time before the first look, and between the first and the second one: a new cluster has objects that wait for others.
	settling = time.Minute
	// pause is the time between two looks, if they are short. It is at least share times as long as a look took, so that looks take at most
	// 0.05 % of a core, up to longestPause.
	pause        = 5 * time.Minute
	share        = 2000
	longestPause = time.Hour
	// again is how long a cause is not repeated. An Event lives for an hour, unless the user has set event-ttl.
	again = time.Hour
	// mostOfNamespace and mostOfLook are how many Events a look writes, because a user of one namespace can make any number of such objects.
	mostOfNamespace = 10
	mostOfLook      = 100
)

// Config is what New needs.
type Config struct {
	// Client calls as User, until ctx ends.
	Client func(ctx context.Context) *rest.Config
	// Unused tells whether a resource is one of custom resources of which there are no objects. Such a resource is not read, because reading
	// takes memory. It may be nil.
	Unused func(ctx context.Context, resource schema.GroupResource) bool
}

// LastResort implements the election package's Loops.
type LastResort struct {
	cfg Config
	log *logrus.Entry
}

// New makes the component's loops.
func New(cfg Config) *LastResort {
	return &LastResort{cfg, logrus.WithField("component", "last-resort")}
}

// Lead looks at the cluster from time to time, until ctx ends. It is ready at once: nothing waits for it.
func (l *LastResort) Lead(ctx context.Context, ready func()) error {
	client := l.cfg.Client(ctx)
	api, err := kubernetes.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	fenced, err := fencedClients(client)
	if err != nil {
		return err
	}
	o := &observer{api: api, clients: fenced, unused: l.cfg.Unused}
	o.recorder = func() record.EventRecorder { return events.NewRecorder(ctx, api, why.Author, "") }
	ready()
	o.run(ctx, l.log)
	return nil
}

// observer looks at the cluster during one term.
type observer struct {
	api kubernetes.Interface
	// clients are those of the rules.
	clients why.Clients
	unused  func(context.Context, schema.GroupResource) bool
	// recorder makes the recorder. It is called before the first Event.
	recorder func() record.EventRecorder
	writer   record.EventRecorder
	// before are the causes that the last look has found. It is nil before the first one.
	before map[cause]bool
}

// cause is why an object does not work.
type cause struct {
	object types.UID
	rule   string
}

// run looks until ctx ends.
func (o *observer) run(ctx context.Context, log *logrus.Entry) {
	if loop.Sleep(ctx, settling) != nil {
		return
	}
	loop.Loop{Log: log, Meanwhile: "Events may be missing that say why objects do not work"}.Run(ctx, func(ctx context.Context) (loop.Next, error) {
		began, first := time.Now(), o.before == nil
		err := o.look(ctx)
		took := time.Since(began)
		log.Debugf("A look at all namespaces took %s. There are causes: %d", took.Round(time.Millisecond/10), len(o.before))
		if first {
			return loop.Next{After: settling}, err
		}
		return loop.Next{After: max(pause, min(share*took, longestPause))}, err
	})
}

// look writes Events about causes that the last look has found, too: others may be under way. It looks at one namespace after the other. If the API
// does not tell all, the error is the first one, and the look goes on.
func (o *observer) look(ctx context.Context) (fault error) {
	all, err := o.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	kinds := o.kinds(ctx)
	now := map[cause]bool{}
	var untold [][]*why.Report
	for _, namespace := range all.Items {
		if namespace.DeletionTimestamp != nil {
			continue // it takes no more Events
		}
		lasting, err := o.lasting(ctx, namespace.Name, kinds, now)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && fault == nil {
			fault = fmt.Errorf("look at namespace %s: %w", namespace.Name, err)
		}
		if len(lasting) > 0 {
			untold = append(untold, lasting)
		}
	}
	o.before = now
	for _, report := range fair(untold) {
		o.write(report)
	}
	return fault
}

// lasting returns what is to be written about a namespace, and adds all causes there to now.
func (o *observer) lasting(ctx context.Context, namespace string, kinds []string, now map[cause]bool) ([]*why.Report, error) {
	reports, err := why.Causes(within(ctx, namespace), o.clients, namespace, kinds)
	reports = slices.DeleteFunc(reports, func(r *why.Report) bool {
		if !isSilent(r) {
			return true
		}
		c := causeOf(r)
		now[c] = true
		return !o.before[c]
	})
	if len(reports) == 0 {
		return nil, err
	}
	warnings, fault := o.api.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning, ResourceVersion: "0"})
	if fault != nil {
		return nil, fmt.Errorf("list Events: %w", fault)
	}
	return slices.DeleteFunc(reports, func(r *why.Report) bool {
		return slices.ContainsFunc(warnings.Items, func(e corev1.Event) bool { return says(&e, r) })
	}), err
}

// says tells whether an Event of the last hour warns about an object: one of another component, whatever it says, or one about the same cause. So
// a server that is elected later does not repeat what another one has written.
func says(e *corev1.Event, r *why.Report) bool {
	return e.InvolvedObject.UID == causeOf(r).object && time.Since(events.Seen(e)) < again && (e.Source.Component != why.Author || e.Reason == reason(r))
}

func causeOf(r *why.Report) cause {
	return cause{r.Self.(metav1.Object).GetUID(), r.Cause().Rule}
}

// reason returns the name of a rule in the form that reasons of Events have: selector-matches-nothing is SelectorMatchesNothing.
func reason(r *why.Report) (camel string) {
	for word := range strings.SplitSeq(r.Cause().Rule, "-") {
		camel += strings.ToUpper(word[:1]) + word[1:]
	}
	return camel
}

// write writes an Event. The recorder counts up the last one if it says the same, and still exists.
func (o *observer) write(r *why.Report) {
	if o.writer == nil {
		o.writer = o.recorder()
	}
	says := r.Cause().Says
	text := strings.ToUpper(says[:1]) + says[1:]
	if do := r.Cause().Do; do != "" {
		text += ". What to do: " + do
	}
	o.writer.Event(r.Self, corev1.EventTypeWarning, reason(r), events.Message(text))
}

// fair takes one report of each namespace after the other, until it has as many as a look writes. Namespaces that are left out have their turn at
// the next look, because nothing is repeated for an hour.
func fair(ofNamespaces [][]*why.Report) (some []*why.Report) {
	for i := range mostOfNamespace {
		for _, reports := range ofNamespaces {
			if i < len(reports) && len(some) < mostOfLook {
				some = append(some, reports[i])
			}
		}
	}
	return some
}
