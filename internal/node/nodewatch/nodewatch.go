// Package nodewatch follows the Node object of this host and reports when the node is ready and
// when somebody has deleted it. The agent package creates its component.
package nodewatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/nodeobject"
)

// deletedReminder is how often the warning about a deleted node is repeated. The kubelet's own
// messages about failed requests would otherwise bury it.
const deletedReminder = 10 * time.Minute

// New returns the component that is ready once the kubelet of this process has told the API that the node is ready. Later
// it warns when the node is deleted: the kubelet registers a node only when it starts, so a deleted node does
// not come back by itself. client calls as the node.
func New(client *rest.Config, name string) component.Component {
	anew := nodeobject.Anew()
	return component.Func("node", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		nodes := cache.NewListWatchFromClient(api.CoreV1().RESTClient(), "nodes", "",
			fields.OneTermEqualSelector("metadata.name", name))
		if err := watchNode(ctx, nodes, name, anew, deletedReminder, ready); err != nil {
			return fmt.Errorf("watch node %s: %w", name, err)
		}
		return nil
	})
}

// watchNode watches the one node that nodes lists, until ctx is cancelled.
func watchNode(ctx context.Context, nodes cache.ListerWatcher, name string, anew func(*corev1.Node) bool, reminder time.Duration, ready func()) error {
	ready = sync.OnceFunc(ready)
	_, _, watcher, ended := watchtools.NewIndexerInformerWatcherWithLogger(klog.FromContext(ctx), nodes, &corev1.Node{})
	defer func() {
		watcher.Stop()
		<-ended
	}()
	remind := time.NewTicker(reminder)
	defer remind.Stop()
	deleted := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-watcher.ResultChan():
			if !open {
				return errors.New("the watch ended unexpectedly")
			}
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			if deleted = event.Type == watch.Deleted; !deleted && anew(node) && nodeobject.IsReady(node) {
				ready()
			}
			remind.Reset(reminder)
			if !deleted {
				component.Report(ctx, nil)
				continue
			}
		case <-remind.C:
			if !deleted {
				continue
			}
		}
		fault := fmt.Errorf("node %s was deleted from the cluster, together with its pods: restart kedge with a join token to make the node join again, "+
			"or stop kedge and run `kedge killall` to remove what it left on this host", name)
		component.Report(ctx, fault)
		logrus.WithField("component", "node").Warn(fault)
	}
}
