package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// The objects that a file has put into the cluster are an ApplySet in kubectl's
// form (KEP-3659, k8s.io/kubectl/pkg/cmd/apply/applyset.go). They have a label,
// and a ConfigMap lists the kinds that may have it. So kedge need not remember
// anything, and any kubectl shows the set.
const (
	namespace = metav1.NamespaceSystem

	//upstream:relies-on k8s.io/kubectl/pkg/cmd/apply/applyset.go ApplySetToolingAnnotation ApplysetPartOfLabel ApplySetParentIDLabel ApplySetGKsAnnotation
	partOfLabel     = "applyset.kubernetes.io/part-of"
	setIDLabel      = "applyset.kubernetes.io/id"
	toolAnnotation  = "applyset.kubernetes.io/tooling"
	kindsAnnotation = "applyset.kubernetes.io/contains-group-kinds"
	tool            = "kedge/v1"

	// fileAnnotation is the file's path below the folder. serverAnnotation is the
	// server that has the file.
	fileAnnotation   = "kedge.dev/manifest"
	serverAnnotation = "kedge.dev/server"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// setName returns the name of a file's ConfigMap.
func setName(file string) string {
	name := "manifest-" + strings.ReplaceAll(file, "/", ".")
	if len(validation.IsDNS1123Subdomain(name)) > 0 || strings.Count(file, "/") > 0 {
		sum := sha256.Sum256([]byte(file))
		name = "manifest-" + hex.EncodeToString(sum[:8])
	}
	return name
}

func withLabel(labels map[string]string, set string) map[string]string {
	if labels == nil {
		labels = map[string]string{}
	}
	labels[partOfLabel] = set
	return labels
}

// recall finds the files that have put something into the cluster: this server's
// files, and those that are disabled.
func (k *keeper) recall(ctx context.Context, found *files) error {
	sets, err := k.client.Resource(configMaps).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: setIDLabel})
	if err != nil {
		return fmt.Errorf("list the sets of applied objects: %w", err)
	}
	disabled := found.disabled
	for _, set := range sets.Items {
		annotations := set.GetAnnotations()
		name := annotations[fileAnnotation]
		if annotations[toolAnnotation] != tool || name == "" {
			continue
		}
		by := disabledBy(name, k.Disable)
		if disabled = append(disabled, by); by != "" || annotations[serverAnnotation] == k.Server {
			k.files[name] = &file{}
		}
	}
	for _, name := range k.Disable {
		if !slices.Contains(disabled, name) && !config.NamesPart(name) {
			k.log.Warnf("Cannot disable %s: it is neither a part of kedge nor a file in %s", name, k.Path)
		}
	}
	k.recalled = true
	return nil
}

// kindsOf returns the kinds of the objects that a file has put into the cluster.
func (k *keeper) kindsOf(ctx context.Context, name string) (sets.Set[schema.GroupKind], error) {
	live, err := k.client.Resource(configMaps).Namespace(namespace).Get(ctx, setName(name), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	kinds := sets.New[schema.GroupKind]()
	for text := range strings.SplitSeq(live.GetAnnotations()[kindsAnnotation], ",") {
		if text != "" {
			kinds.Insert(schema.ParseGroupKind(text))
		}
	}
	return kinds, nil
}

// sortedKinds returns kinds in the order of their texts.
func sortedKinds(kinds sets.Set[schema.GroupKind]) []schema.GroupKind {
	return slices.SortedFunc(maps.Keys(kinds), func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) })
}

// openSet adds the kinds of the objects that are about to be applied to the kinds
// of the file's set. It returns the set's ID, and the kinds that the set had
// before.
func (k *keeper) openSet(ctx context.Context, name string, kinds sets.Set[schema.GroupKind]) (id string, before sets.Set[schema.GroupKind], err error) {
	before, err = k.kindsOf(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", nil, err
	}
	return setID(setName(name)), before, k.writeSet(ctx, name, before.Union(kinds))
}

// closeSet removes the kinds from the set that it has no objects of any more.
func (k *keeper) closeSet(ctx context.Context, name string, before, kinds sets.Set[schema.GroupKind]) error {
	if kinds.IsSuperset(before) {
		return nil
	}
	return k.writeSet(ctx, name, kinds)
}

func (k *keeper) writeSet(ctx context.Context, name string, kinds sets.Set[schema.GroupKind]) error {
	var texts []string
	for _, kind := range sortedKinds(kinds) {
		texts = append(texts, kind.String())
	}
	set := &unstructured.Unstructured{}
	set.SetAPIVersion("v1")
	set.SetKind("ConfigMap")
	set.SetNamespace(namespace)
	set.SetName(setName(name))
	set.SetLabels(map[string]string{setIDLabel: setID(setName(name))})
	set.SetAnnotations(map[string]string{
		toolAnnotation:   tool,
		kindsAnnotation:  strings.Join(texts, ","),
		fileAnnotation:   name,
		serverAnnotation: k.Server,
	})
	_, err := k.client.Resource(configMaps).Namespace(namespace).Apply(ctx, setName(name), set, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", namespace, setName(name), err)
	}
	return nil
}
