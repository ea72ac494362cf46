package agent

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
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// deletedReminder is how often it is said that the node is deleted: upstream's
// kubelet fills the log with what it cannot do then.
const deletedReminder = 10 * time.Minute

// newNodeWatch returns the component that is ready once the API says that the
// node is. From then on it tells when the node is deleted: the kubelet registers
// at its start only, so that what an administrator removed stays away.
func newNodeWatch(cfg Config) component.Component {
	return component.Func("node", func(ctx context.Context, ready func()) error {
		client, err := kubernetes.NewForConfig(cfg.nodeClient())
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "",
			fields.OneTermEqualSelector("metadata.name", cfg.Node.Name))
		if err := watchNode(ctx, nodes, cfg.Node.Name, deletedReminder, ready); err != nil {
			return fmt.Errorf("watch node %s: %w", cfg.Node.Name, err)
		}
		return nil
	})
}

// watchNode watches the one node of nodes until ctx is cancelled.
func watchNode(ctx context.Context, nodes cache.ListerWatcher, name string, reminder time.Duration, ready func()) error {
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
				return errors.New("it ended by itself")
			}
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			if deleted = event.Type == watch.Deleted; !deleted && isReady(node) {
				ready()
			}
			remind.Reset(reminder)
			if !deleted {
				continue
			}
		case <-remind.C:
			if !deleted {
				continue
			}
		}
		logrus.WithField("component", "node").Warnf("Node %s was deleted from the cluster, and its pods with it: "+
			"restart kedge to have it join again, or else stop kedge here and remove what it left by kedge killall", name)
	}
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
