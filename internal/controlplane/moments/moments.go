// Package moments brings into a server's flight recorder what happens in the cluster: Events that warn, rollouts, nodes
// that come and go, and upgrades. The server package creates its component.
package moments

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/events"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/recording"
)

// User is who reads the Events.
const User = "system:kedge:recorder"

const (
	// quiet is how long nothing more is noted of an object for the same reason. One pod of a workload stands for all.
	quiet = 10 * time.Minute
	// most is how many objects and reasons are remembered for that.
	most = 1000
	// A user of one namespace can make any number of Events. So a namespace gets this many moments in an hour, and all
	// of them together get ten times as many. Tenants can have several namespaces. So beyond that, a namespace still gets
	// its first few moments, until there are twice as many.
	mostOfNamespace = 30
	mostOfAll       = 10 * mostOfNamespace
	firstFew        = 3
)

// notable are the reasons of Events that do not warn and still belong into a recording: those of rollouts
// (pkg/controller/deployment), of nodes (pkg/controller/nodelifecycle), and of Plans.
var notable = []string{
	"ScalingReplicaSet",
	"NodeReady", nodeNotReady, "RemovingNode",
	"NodeOrdered", "NodeUpgraded", "Complete",
}

const (
	nodeNotReady = "NodeNotReady"
	// noCapacity is the reason of a warning at each start of a kubelet, before it has asked the runtime for the first
	// time (pkg/kubelet/images/image_gc_manager.go).
	noCapacity = "InvalidDiskCapacity"
)

// says tells whether an Event belongs into a recording. When a node is not ready, each of its pods has an Event, too.
func says(event *corev1.Event) bool {
	switch event.Reason {
	case noCapacity:
		return false
	case nodeNotReady:
		return event.InvolvedObject.Kind == "Node"
	}
	return event.Type == corev1.EventTypeWarning || slices.Contains(notable, event.Reason)
}

// workload matches what controllers add to the name of a workload for its pods: the hash of a ReplicaSet, and random letters
// (k8s.io/apimachinery/pkg/util/rand, SafeEncodeString).
var workload = regexp.MustCompile(`(-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$`)

// New returns the component. client calls as User. note takes each moment.
func New(client *rest.Config, note func(recording.Moment)) component.Component {
	f := &follower{note: note, said: lru.New(most), log: logrus.WithField("component", "moments"), now: time.Now}
	return component.Func("moments", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		ready()
		loop.Stream(f.log).Run(ctx, func(ctx context.Context) (loop.Next, error) { return loop.Next{}, f.follow(ctx, api) })
		return nil
	})
}

// errEnded says that the API server has ended the watch, as it does from time to time.
var errEnded = errors.New("the watch ended")

// follower notes Events, without keeping them.
type follower struct {
	note func(recording.Moment)
	// said is when an object's Events of a reason were noted.
	said *lru.Cache
	// hour is the present one, and counts are the moments in it by namespace.
	hour   time.Time
	counts map[string]int
	all    int
	// since is the resourceVersion after the last Event, or empty.
	since string
	log   *logrus.Entry
	now   func() time.Time
}

// follow notes Events until the watch ends.
func (f *follower) follow(ctx context.Context, api kubernetes.Interface) error {
	all := api.CoreV1().Events(metav1.NamespaceAll)
	if f.since == "" {
		// Older Events are left out: the recording has them, or their times are in the past.
		list, err := all.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return fmt.Errorf("list Events: %w", err)
		}
		f.since = list.ResourceVersion
	}
	watcher, err := all.Watch(ctx, metav1.ListOptions{ResourceVersion: f.since, AllowWatchBookmarks: true})
	if err != nil {
		f.since = ""
		return fmt.Errorf("watch Events: %w", err)
	}
	defer watcher.Stop()
	for change := range watcher.ResultChan() {
		event, ok := change.Object.(*corev1.Event)
		if !ok {
			f.since = "" // too old, for example
			return fmt.Errorf("watch Events: %v", change.Object)
		}
		f.since = event.ResourceVersion
		if change.Type == watch.Added || change.Type == watch.Modified {
			f.take(event)
		}
	}
	return errEnded
}

// take notes an Event, if it is notable and news.
func (f *follower) take(event *corev1.Event) {
	if !says(event) {
		return
	}
	object := event.InvolvedObject
	key := [4]string{object.Kind, object.Namespace, workload.ReplaceAllString(object.Name, ""), event.Reason}
	if event.Type != corev1.EventTypeWarning {
		key[3] += event.Message // each step of a rollout is news
	}
	now := f.now()
	if said, ok := f.said.Get(key); ok && now.Sub(said.(time.Time)).Abs() < quiet {
		return
	}
	f.said.Add(key, now)
	if !f.admit(object.Namespace, now) {
		return
	}
	name := object.Name
	if object.Namespace != "" {
		name = object.Namespace + "/" + name
	}
	text := events.WithoutOwnWords(event)
	if about := object.Kind + " " + name; !strings.HasPrefix(text, about+" ") {
		text = about + ": " + text
	}
	f.note(recording.Moment{At: now, Kind: event.Reason, Text: text})
}

// admit tells whether a namespace may have one more moment in this hour. The last one says that there may be more. Objects
// without a namespace are no tenant's.
func (f *follower) admit(namespace string, now time.Time) bool {
	if hour := now.Truncate(time.Hour); !hour.Equal(f.hour) {
		f.hour, f.counts, f.all = hour, map[string]int{}, 0
	}
	if namespace == "" {
		return true
	}
	full := f.all >= mostOfAll && f.counts[namespace] >= firstFew
	if full || f.counts[namespace] >= mostOfNamespace || f.all >= 2*mostOfAll {
		return false
	}
	f.counts[namespace]++
	f.all++
	if f.all == mostOfAll {
		f.note(recording.Moment{At: now, Kind: "recorder", Text: fmt.Sprintf("The cluster has many Events. Of each namespace, only the first %d of this hour are in the recording from here on", firstFew)})
	}
	if f.counts[namespace] == mostOfNamespace {
		f.note(recording.Moment{At: now, Kind: "recorder", Text: "Namespace " + namespace + " has many Events. Further ones of this hour are not in the recording"})
		return false
	}
	return true
}
