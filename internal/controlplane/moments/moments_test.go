package moments

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/lru"

	"github.com/kedge-dev/kedge/internal/base/recording"
)

func event(kind, name, reason, eventType, message string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name + reason, ResourceVersion: "7"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "default", Name: name},
		Reason:         reason, Type: eventType, Message: message,
	}
}

// newFollower returns a follower with a clock, and what it has noted.
func newFollower() (f *follower, now *time.Time, noted *[]string) {
	now, noted = new(time.Time), &[]string{}
	*now = time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC)
	return &follower{
		note: func(m recording.Moment) { *noted = append(*noted, m.Kind+": "+m.Text) },
		said: lru.New(most), log: logrus.WithField("component", "test"), now: func() time.Time { return *now },
	}, now, noted
}

func TestTake(t *testing.T) {
	f, now, noted := newFollower()
	for range 3 { // the same again within seconds
		f.take(event("Pod", "web-54db9c7d96-5xqdg", "BackOff", corev1.EventTypeWarning, "restarting"))
		f.take(event("Pod", "web-54db9c7d96-xgxtk", "BackOff", corev1.EventTypeWarning, "restarting"))
		f.take(event("Pod", "web", "Pulled", corev1.EventTypeNormal, "image is there"))
		f.take(event("Pod", "web", nodeNotReady, corev1.EventTypeWarning, "Node is not ready"))
		f.take(event("Node", "edge", noCapacity, corev1.EventTypeWarning, "invalid capacity 0"))
		f.take(event("Deployment", "web", "ScalingReplicaSet", corev1.EventTypeNormal, "Scaled up web-1 from 0 to 1"))
	}
	f.take(event("Node", "edge", nodeNotReady, corev1.EventTypeNormal, "Node default/edge status is now: NodeNotReady"))
	f.take(event("Deployment", "web", "ScalingReplicaSet", corev1.EventTypeNormal, "Scaled down web-0 from 1 to 0"))
	f.take(event("Pod", "web", "Unhealthy", corev1.EventTypeWarning, "Readiness probe failed: password=hush"))
	*now = now.Add(quiet)
	f.take(event("Pod", "web", "BackOff", corev1.EventTypeWarning, "restarting"))
	want := []string{
		"BackOff: Pod default/web-54db9c7d96-5xqdg: restarting",
		"ScalingReplicaSet: Deployment default/web: Scaled up web-1 from 0 to 1",
		"NodeNotReady: Node default/edge status is now: NodeNotReady",
		"ScalingReplicaSet: Deployment default/web: Scaled down web-0 from 1 to 0",
		"Unhealthy: Pod default/web: Readiness probe failed",
		"BackOff: Pod default/web: restarting",
	}
	if !slices.Equal(*noted, want) {
		t.Errorf("noted\n%s\nwant\n%s", strings.Join(*noted, "\n"), strings.Join(want, "\n"))
	}
}

// A watch that ends goes on after the last Event. One that cannot go on begins with what comes then.
func TestFollow(t *testing.T) {
	f, _, noted := newFollower()
	api := fake.NewClientset()
	var since []string
	next := make(chan *watch.FakeWatcher, 3)
	api.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "5"}}, nil
	})
	api.PrependWatchReactor("events", func(action clienttesting.Action) (bool, watch.Interface, error) {
		since = append(since, action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion)
		watcher := watch.NewFakeWithChanSize(3, false)
		next <- watcher
		return true, watcher, nil
	})
	for _, say := range []func(*watch.FakeWatcher){
		func(w *watch.FakeWatcher) { w.Add(event("Pod", "web", "Failed", corev1.EventTypeWarning, "no image")) },
		func(w *watch.FakeWatcher) { w.Error(&metav1.Status{Message: "too old"}) },
		func(*watch.FakeWatcher) {},
	} {
		ended := make(chan error, 1)
		go func() { ended <- f.follow(context.Background(), api) }()
		watcher := <-next
		say(watcher)
		watcher.Stop()
		if err := <-ended; err == nil || !errors.Is(err, errEnded) && !strings.Contains(err.Error(), "too old") {
			t.Errorf("the end of a watch: %v", err)
		}
	}
	if want := []string{"5", "7", "5"}; !slices.Equal(since, want) || len(*noted) != 1 {
		t.Errorf("watches began at %v, want %v; noted %v", since, want, *noted)
	}
}

// A namespace with many Events does not keep those of others out of the recording.
func TestFlood(t *testing.T) {
	f, now, noted := newFollower()
	flood := func() {
		for i := range 1000 {
			f.take(event("Pod", fmt.Sprint("flood-", i), "BackOff", corev1.EventTypeWarning, "x"))
		}
	}
	flood()
	other := event("Pod", "web", "BackOff", corev1.EventTypeWarning, "y")
	other.InvolvedObject.Namespace = "other"
	f.take(other)
	if len(*noted) != mostOfNamespace+1 || !strings.Contains((*noted)[mostOfNamespace-1], "Namespace default has many Events") || !strings.HasSuffix((*noted)[mostOfNamespace], "other/web: y") {
		t.Errorf("noted %d: %v", len(*noted), (*noted)[max(0, len(*noted)-3):])
	}
	*now = now.Add(time.Hour)
	flood()
	if len(*noted) != 2*mostOfNamespace+1 {
		t.Errorf("an hour later, %d are noted altogether", len(*noted))
	}
}

// Ten namespaces of one tenant use up the moments of an hour. Others still have their first ones, and not without bound.
func TestManyNamespaces(t *testing.T) {
	f, now, noted := newFollower()
	flood := func(namespace string) (n int) {
		before := len(*noted)
		for i := range 40 {
			e := event("Pod", fmt.Sprint("flood-", i), "BackOff", corev1.EventTypeWarning, "x")
			e.InvolvedObject.Namespace = namespace
			f.take(e)
		}
		return len(*noted) - before
	}
	for i := range mostOfAll / mostOfNamespace {
		flood(fmt.Sprint("tenant-", i))
	}
	if last := (*noted)[len(*noted)-2]; !strings.Contains(last, "The cluster has many Events") {
		t.Errorf("that not all are there is said by %q", last)
	}
	for i := range 2 * mostOfAll {
		want := 0
		if i < mostOfAll/firstFew {
			want = firstFew
		}
		if got := flood(fmt.Sprint("other-", i)); got != want {
			t.Fatalf("the namespace number %d beyond has %d moments, want %d", i, got, want)
		}
	}
	*now = now.Add(time.Hour)
	if got := flood("other"); got != mostOfNamespace {
		t.Errorf("an hour later, a namespace has %d moments", got)
	}
}
