package fromk3s

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// packaged are the manifests that k3s writes itself: the name of each without its ending,
// and what kedge has instead.
var packaged = map[string]string{
	"ccm":             "kedge needs no cloud controller manager.",
	"coredns":         "kedge serves DNS itself.",
	"gateway-api-crd": "kedge has the kinds of the Gateway API itself.",
	"local-storage":   "kedge makes local volumes itself.",
	"metrics-server":  "kedge serves metrics.k8s.io itself.",
	"rolebindings":    "kedge has rights of its own.",
	"runtimes":        "kedge makes RuntimeClasses of the runtimes that it finds.",
	traefik:           "kedge's gateway takes the place of Traefik: see docs/gateway.md.",
}

// manifests reads the manifests that k3s applies by itself.
func (i *installation) manifests() error {
	folder := filepath.Join(i.data, manifestFolder)
	err := filepath.WalkDir(i.path(folder), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || entry.IsDir() || !entry.Type().IsRegular() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
			return err
		}
		shown := i.shown(path)
		relative, _ := filepath.Rel(i.path(folder), path)
		part, _, inFolder := strings.Cut(relative, string(filepath.Separator))
		if !inFolder {
			part = strings.TrimSuffix(part, filepath.Ext(part))
		}
		if instead, own := packaged[part]; own {
			i.add(Changes, shown, part, "This is k3s's own manifest: leave it out. "+instead)
			return nil
		}
		if i.skipped(path, folder) {
			i.add(Works, shown, "", "It is skipped, as in k3s.")
			return nil
		}
		text, err := datadir.ReadText(path)
		if err != nil {
			return err
		}
		if err := i.objects(shown, text); err != nil {
			i.add(Cannot, shown, "", "It is not a manifest: "+err.Error()+".")
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read k3s's manifests: %w", err)
	}
	return nil
}

// skipped tells whether a file, or a folder that it is in, has a file NAME.skip beside it.
func (i *installation) skipped(path, folder string) bool {
	for ; path != i.path(folder) && len(path) > len(i.path(folder)); path = filepath.Dir(path) {
		if _, err := os.Stat(path + ".skip"); err == nil {
			return true
		}
	}
	return false
}

// objects judges the objects in a manifest.
func (i *installation) objects(source string, text []byte) error {
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text)+1)
	for {
		object := &unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if object.Object == nil {
			continue
		}
		items := []unstructured.Unstructured{*object}
		if object.IsList() {
			list, err := object.ToList()
			if err != nil {
				return err
			}
			items = list.Items
		}
		for _, item := range items {
			result, says := i.judge(&item)
			i.add(result, source, nameOf(&item), says)
		}
	}
}

// judged are the kinds of objects in a cluster that judge has something to say about.
var judged = []schema.GroupVersionResource{
	{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"},
	{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"},
	{Group: "helm.cattle.io", Version: "v1", Resource: "helmcharts"},
	{Group: "helm.cattle.io", Version: "v1", Resource: "helmchartconfigs"},
	{Group: "k3s.cattle.io", Version: "v1", Resource: "addons"},
	{Group: "k3s.cattle.io", Version: "v1", Resource: "etcdsnapshotfiles"},
	{Group: "upgrade.cattle.io", Version: "v1", Resource: "plans"},
	{Group: "traefik.io", Version: "v1alpha1", Resource: "ingressroutes"},
	{Group: "traefik.io", Version: "v1alpha1", Resource: "middlewares"},
	{Group: "traefik.containo.us", Version: "v1alpha1", Resource: "ingressroutes"},
	{Group: "traefik.containo.us", Version: "v1alpha1", Resource: "middlewares"},
}

// cluster judges objects of the cluster that k3s serves. Kinds that the cluster does not
// have are left out.
func (i *installation) cluster(ctx context.Context, cfg *rest.Config) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return i.clusterOf(ctx, client)
}

func (i *installation) clusterOf(ctx context.Context, client dynamic.Interface) error {
	for _, kind := range judged {
		list, err := client.Resource(kind).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s of the cluster: %w", kind.Resource, err)
		}
		for _, item := range list.Items {
			result, says := i.judge(&item)
			i.add(result, "cluster", nameOf(&item), says)
		}
	}
	return nil
}
