package dns

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/events"
)

const (
	namespace = metav1.NamespaceSystem
	// customName is the name of the ConfigMap with the user's parts, as in k3s.
	customName = "coredns-custom"
)

// watchCustom sends the ConfigMap with the user's parts when its data change, and nil when it is
// deleted, until ctx ends.
func watchCustom(ctx context.Context, api kubernetes.Interface, parts chan<- *corev1.ConfigMap) {
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, customName).String()
		}))
	send := func(configMap *corev1.ConfigMap) {
		select {
		case parts <- configMap:
		case <-ctx.Done():
		}
	}
	// Adding a handler fails only on an informer that has stopped.
	_, _ = factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { send(object.(*corev1.ConfigMap)) },
		UpdateFunc: func(old, object any) {
			if old.(*corev1.ConfigMap).ResourceVersion != object.(*corev1.ConfigMap).ResourceVersion {
				send(object.(*corev1.ConfigMap))
			}
		},
		DeleteFunc: func(any) { send(nil) },
	})
	factory.StartWithContext(ctx)
	<-ctx.Done()
	factory.Shutdown()
}

// refuse writes an Event on the ConfigMap that says why its parts are not used.
func refuse(ctx context.Context, api kubernetes.Interface, node string, configMap *corev1.ConfigMap, reason error) error {
	if configMap == nil {
		return nil
	}
	now := metav1.NewTime(time.Now())
	_, err := api.CoreV1().Events(configMap.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: fmt.Sprintf("%s.", configMap.Name),
			Namespace:    configMap.Namespace,
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion:      "v1",
			Kind:            "ConfigMap",
			Namespace:       configMap.Namespace,
			Name:            configMap.Name,
			UID:             configMap.UID,
			ResourceVersion: configMap.ResourceVersion,
		},
		Type:                corev1.EventTypeWarning,
		Reason:              "CorefileRefused",
		Message:             events.Message("The former configuration stays in use: " + reason.Error()),
		Source:              corev1.EventSource{Component: "kedge-dns", Host: node},
		ReportingController: "kedge-dns",
		ReportingInstance:   node,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
	}, metav1.CreateOptions{})
	return err
}
