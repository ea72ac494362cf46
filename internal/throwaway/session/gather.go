package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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

// Gather writes into a folder what shows why something failed in a cluster: the logs of kedge and of all
// containers, and all objects with the Events. Secrets are there without their values. It writes as much as
// it can, and returns all faults.
func Gather(ctx context.Context, cluster clusters.Known, ready keeper.Report, folder string) error {
	faults := []error{copyFolder(ready.Logs, filepath.Join(folder, "kedge"))}
	for i, pid := range cluster.FirstProcesses {
		source := filepath.Join(fmt.Sprintf("/proc/%d/root", pid), datadir.PodLogs)
		faults = append(faults, copyFolder(source, filepath.Join(folder, "containers", cluster.NodeName(i+1))))
	}
	return errors.Join(append(faults, dumpObjects(ctx, ready.Kubeconfig, filepath.Join(folder, "objects")))...)
}

// copyFolder copies the regular files of a folder. Pods own the folder of their logs, so nothing there is
// followed to another place.
func copyFolder(from, to string) error {
	root, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // There was no container yet.
	}
	if err != nil {
		return fmt.Errorf("copy logs: %w", err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := root.ReadFile(path)
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(to, path), text)
	})
	if err != nil {
		return fmt.Errorf("copy logs: %w", err)
	}
	return nil
}

func writeFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// dumpObjects writes a file for each kind that has objects.
func dumpObjects(ctx context.Context, kubeconfig, folder string) error {
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
				faults = append(faults, dumpKind(ctx, client, version.WithResource(resource.Name), folder))
			}
		}
	}
	return errors.Join(faults...)
}

// dumped tells whether the objects of a resource can be listed, and are not those of another one.
func dumped(group string, resource metav1.APIResource) bool {
	again := resource.Name == "events" && group != "" || resource.Name == "endpoints" || resource.Name == "componentstatuses"
	return slices.Contains(resource.Verbs, "list") && !again
}

func dumpKind(ctx context.Context, client dynamic.Interface, kind schema.GroupVersionResource, folder string) error {
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
	return writeFile(filepath.Join(folder, name+".yaml"), text)
}

// hideValues replaces the values of a Secret by their sizes.
func hideValues(secret *unstructured.Unstructured) {
	data, _, _ := unstructured.NestedStringMap(secret.Object, "data")
	for key, value := range data {
		data[key] = fmt.Sprintf("(%d characters)", len(value))
	}
	if len(data) > 0 {
		_ = unstructured.SetNestedStringMap(secret.Object, data, "data")
	}
	// kubectl apply keeps the whole object there.
	unstructured.RemoveNestedField(secret.Object, "metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
}
