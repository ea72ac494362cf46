package addons

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// read returns the objects of the manifests in a folder, in the order of the
// files and of the documents in them.
func read(files fs.FS, folder string) ([]*unstructured.Unstructured, error) {
	names, err := fs.Glob(files, path.Join(folder, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	var objects []*unstructured.Unstructured
	for _, name := range names {
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		decoded, err := Decode(content)
		if err != nil {
			return nil, fmt.Errorf("parse manifest %s: %w", name, err)
		}
		objects = append(objects, decoded...)
	}
	return objects, nil
}

// Decode returns the objects in the documents of a file, YAML or JSON, in their
// order. It skips empty documents.
func Decode(content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for number := 1; ; number++ {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// setClusterDNS gives the Service kube-dns its addresses, of one family or both.
func setClusterDNS(objects []*unstructured.Unstructured, addresses []netip.Addr) error {
	var clusterIPs, families []any
	for _, address := range addresses {
		family := corev1.IPv4Protocol
		if address.Is6() {
			family = corev1.IPv6Protocol
		}
		clusterIPs, families = append(clusterIPs, address.String()), append(families, string(family))
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(addresses) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	for _, object := range objects {
		if object.GetKind() != "Service" || object.GetName() != "kube-dns" {
			continue
		}
		spec, _, err := unstructured.NestedMap(object.Object, "spec")
		if err != nil {
			return fmt.Errorf("read Service kube-dns: %w", err)
		}
		spec["clusterIP"], spec["clusterIPs"] = clusterIPs[0], clusterIPs
		spec["ipFamilies"], spec["ipFamilyPolicy"] = families, string(policy)
		object.Object["spec"] = spec
	}
	return nil
}

// runtimeClass returns a RuntimeClass named like the handler in containerd's
// configuration, as k3s does.
func runtimeClass(handler string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "node.k8s.io/v1",
		"kind":       "RuntimeClass",
		"metadata":   map[string]any{"name": handler},
		"handler":    handler,
	}}
}

// digestAnnotation identifies the manifest that an object was applied from. So an
// object is applied again even if its new manifest only leaves something out.
const digestAnnotation = "kedge.dev/manifest-digest"

func mark(object *unstructured.Unstructured) error {
	text, err := object.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	sum := sha256.Sum256(text)
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[digestAnnotation] = hex.EncodeToString(sum[:8])
	object.SetAnnotations(annotations)
	return nil
}

// isLeftAlone tells whether kedge must not change an object. The user can ask for
// that with the annotation that Kubernetes has for its own roles and bindings.
// Objects of kinds that others create too are left alone unless kedge created
// them.
func isLeftAlone(live *unstructured.Unstructured) bool {
	annotations := live.GetAnnotations()
	switch live.GetKind() {
	case apiServiceKind:
		if service(live) != "" {
			return true
		}
	case definitionKind, gatewayClassKind, ingressClassKind, snapshotClassKind, storageClassKind:
		if annotations[digestAnnotation] == "" {
			return true
		}
	}
	return annotations[rbacv1.AutoUpdateAnnotationKey] == "false"
}

// apiServiceKind is the kind of an API group that another server may answer.
const apiServiceKind = "APIService"

// service returns namespace/name of the Service that answers an API group in place of
// the API server, or "". kedge makes no such APIService, so it is the user's.
func service(live *unstructured.Unstructured) string {
	namespace, _, _ := unstructured.NestedString(live.Object, "spec", "service", "namespace")
	name, _, _ := unstructured.NestedString(live.Object, "spec", "service", "name")
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// includes tells whether live has everything that wanted has: at least the same
// keys in maps, and the same number of elements in lists.
func includes(live, wanted any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		live, ok := live.(map[string]any)
		if !ok {
			return false
		}
		for key, value := range wanted {
			if got, ok := live[key]; !ok || !includes(got, value) {
				return false
			}
		}
		return true
	case []any:
		live, ok := live.([]any)
		if !ok || len(live) != len(wanted) {
			return false
		}
		for i := range wanted {
			if !includes(live[i], wanted[i]) {
				return false
			}
		}
		return true
	}
	return live == wanted
}

// leaveAddresses removes the addresses from a Service that the live Service has. While that
// one exists, they are taken.
func leaveAddresses(service, live *unstructured.Unstructured) error {
	wanted, found, err := unstructured.NestedStringSlice(service.Object, "spec", "clusterIPs")
	if err != nil || !found {
		return err
	}
	held, _, err := unstructured.NestedStringSlice(live.Object, "spec", "clusterIPs")
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(slices.Clone(wanted), func(address string) bool { return slices.Contains(held, address) })
	if len(left) == len(wanted) {
		return nil
	}
	for _, field := range []string{"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"} {
		unstructured.RemoveNestedField(service.Object, "spec", field)
	}
	if len(left) == 0 {
		return nil
	}
	if err := unstructured.SetNestedField(service.Object, left[0], "spec", "clusterIP"); err != nil {
		return err
	}
	return unstructured.SetNestedStringSlice(service.Object, left[:1], "spec", "clusterIPs")
}
