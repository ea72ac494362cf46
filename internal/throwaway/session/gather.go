package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
)

// gather writes into the folder of --logs what shows why something failed in a cluster: the logs of kedge and of
// all containers, and all objects with the Events. Secrets are there without their values. It writes as much as
// it can, and returns all faults.
func gather(ctx context.Context, cluster clusters.Known, started keeper.Report, to *evidence) error {
	faults := []error{to.copyFolder(started.Logs, ".", "kedge")}
	for i, pid := range cluster.FirstProcesses {
		logs := strings.TrimPrefix(datadir.PodLogs, "/")
		faults = append(faults, to.copyFolder(fmt.Sprintf("/proc/%d/root", pid), logs, filepath.Join("containers", cluster.NodeName(i+1))))
	}
	if started.Kubeconfig != "" {
		faults = append(faults, dumpObjects(ctx, started.Kubeconfig, to))
	}
	return errors.Join(faults...)
}

// dumpObjects writes a file for each kind that has objects.
func dumpObjects(ctx context.Context, kubeconfig string, to *evidence) error {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	known, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	lists, err := known.ServerPreferredResources()
	faults := []error{err}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		for _, resource := range list.APIResources {
			if dumped(version.Group, resource) {
				faults = append(faults, dumpKind(ctx, client, version.WithResource(resource.Name), to))
			}
		}
	}
	return errors.Join(faults...)
}

// dumped tells whether the objects of a resource can be listed, and are not those of another one.
func dumped(group string, resource metav1.APIResource) bool {
	again := group == "" && (resource.Name == "endpoints" || resource.Name == "componentstatuses") || group == eventsv1.GroupName && resource.Name == "events"
	return slices.Contains(resource.Verbs, "list") && !again
}

func dumpKind(ctx context.Context, client dynamic.Interface, kind schema.GroupVersionResource, to *evidence) error {
	list, err := client.Resource(kind).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list %s: %w", kind.Resource, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	for _, object := range list.Items {
		object.SetManagedFields(nil)
		if kind.Resource == "secrets" && kind.Group == "" {
			hideValues(&object)
		}
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		return fmt.Errorf("write %s: %w", kind.Resource, err)
	}
	name := kind.Resource
	if kind.Group != "" {
		name += "." + kind.Group
	}
	return to.write(filepath.Join("objects", name+".yaml"), bytes.NewReader(text))
}

// hideValues replaces the values of a Secret by their sizes.
func hideValues(secret *unstructured.Unstructured) {
	data, _, err := unstructured.NestedStringMap(secret.Object, "data")
	if err != nil {
		unstructured.RemoveNestedField(secret.Object, "data")
	}
	for key, value := range data {
		data[key] = fmt.Sprintf("(%d characters)", len(value))
	}
	if len(data) > 0 {
		_ = unstructured.SetNestedStringMap(secret.Object, data, "data")
	}
	// kubectl apply keeps the whole object there.
	unstructured.RemoveNestedField(secret.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
}
