package etcd

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// NewMembers returns the component that tells a member which nodes the cluster has, so
// that the members of deleted nodes are removed.
func NewMembers(member *Member, source objectcache.Source) component.Component {
	return component.Func("members", func(ctx context.Context, ready func()) error {
		factory, err := source(ctx)
		if err != nil {
			return err
		}
		defer factory.Shutdown()
		_, err = factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) {
				if node, ok := object.(*corev1.Node); ok {
					member.NodeAdded(node.Name)
				}
			},
			DeleteFunc: func(object any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
					member.NodeDeleted(key)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watch nodes: %w", err)
		}
		factory.StartWithContext(ctx)
		ready()
		<-ctx.Done()
		return nil
	})
}
