package supervisor

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/objectcache"
)

// NewRegistrar returns the component that notes at the passwords of nodes that
// these have registered: from then on a name is free again as soon as its Node
// is deleted.
func NewRegistrar(client *rest.Config, nodes objectcache.Source) component.Component {
	return component.Func("registrar", func(ctx context.Context, ready func()) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		return runRegistrar(ctx, api, nodes, ready)
	})
}

func runRegistrar(ctx context.Context, client kubernetes.Interface, nodes objectcache.Source, ready func()) error {
	log := logrus.WithField("component", "registrar")
	factory, err := nodes(ctx)
	if err != nil {
		return err
	}
	defer factory.Shutdown()
	noted := map[string]bool{}
	// A node's next heartbeat is the next attempt.
	note := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok || noted[node.Name] {
			return
		}
		err := noteRegistered(ctx, client, node.Name)
		if noted[node.Name] = err == nil; err != nil {
			log.WithError(err).Debugf("cannot note that node %s has registered", node.Name)
		}
	}
	_, err = factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    note,
		UpdateFunc: func(_, object any) { note(object) },
		DeleteFunc: func(object any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				delete(noted, key)
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
}

func noteRegistered(ctx context.Context, client kubernetes.Interface, node string) error {
	patch := []byte(`{"metadata": {"annotations": {"` + registeredAnnotation + `": "true"}}}`)
	_, err := client.CoreV1().Secrets(passwordNamespace).Patch(ctx, node+passwordSuffix, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil // the administrator has taken it away
	}
	return err
}
