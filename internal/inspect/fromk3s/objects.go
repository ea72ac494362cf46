package fromk3s

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// removed are kinds that Kubernetes 1.37 does not have in a version that it once had, and
// the version that it has (kubernetes.io/docs/reference/using-api/deprecation-guide). An
// empty list of kinds stands for all of them.
var removed = []struct {
	version string
	kinds   []string
	instead string
}{
	{"extensions/v1beta1", []string{"Ingress", "NetworkPolicy"}, "networking.k8s.io/v1"},
	{"extensions/v1beta1", []string{"Deployment", "DaemonSet", "ReplicaSet"}, "apps/v1"},
	{"extensions/v1beta1", []string{"PodSecurityPolicy"}, "a Pod Security Standard of the namespaces"},
	{"policy/v1beta1", []string{"PodSecurityPolicy"}, "a Pod Security Standard of the namespaces"},
	{"policy/v1beta1", []string{"PodDisruptionBudget"}, "policy/v1"},
	{"apps/v1beta1", nil, "apps/v1"},
	{"apps/v1beta2", nil, "apps/v1"},
	{"networking.k8s.io/v1beta1", []string{"Ingress", "IngressClass", "IPAddress", "ServiceCIDR"}, "networking.k8s.io/v1"},
	{"batch/v1beta1", []string{"CronJob"}, "batch/v1"},
	{"batch/v2alpha1", nil, "batch/v1"},
	{"autoscaling/v2beta1", nil, "autoscaling/v2"},
	{"autoscaling/v2beta2", nil, "autoscaling/v2"},
	{"discovery.k8s.io/v1beta1", nil, "discovery.k8s.io/v1"},
	{"events.k8s.io/v1beta1", nil, "events.k8s.io/v1"},
	{"node.k8s.io/v1beta1", nil, "node.k8s.io/v1"},
	{"storage.k8s.io/v1beta1", []string{"CSIDriver", "CSINode", "CSIStorageCapacity", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"}, "storage.k8s.io/v1"},
	{"scheduling.k8s.io/v1beta1", []string{"PriorityClass"}, "scheduling.k8s.io/v1"},
	{"coordination.k8s.io/v1beta1", []string{"Lease"}, "coordination.k8s.io/v1"},
	{"rbac.authorization.k8s.io/v1alpha1", nil, "rbac.authorization.k8s.io/v1"},
	{"rbac.authorization.k8s.io/v1beta1", nil, "rbac.authorization.k8s.io/v1"},
	{"apiextensions.k8s.io/v1beta1", nil, "apiextensions.k8s.io/v1"},
	{"apiregistration.k8s.io/v1beta1", nil, "apiregistration.k8s.io/v1"},
	{"admissionregistration.k8s.io/v1beta1", []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}, "admissionregistration.k8s.io/v1"},
	{"flowcontrol.apiserver.k8s.io/v1beta1", nil, "flowcontrol.apiserver.k8s.io/v1"},
	{"flowcontrol.apiserver.k8s.io/v1beta2", nil, "flowcontrol.apiserver.k8s.io/v1"},
	{"flowcontrol.apiserver.k8s.io/v1beta3", nil, "flowcontrol.apiserver.k8s.io/v1"},
	{"certificates.k8s.io/v1beta1", []string{"CertificateSigningRequest"}, "certificates.k8s.io/v1"},
}

// judge says what becomes of an object: in a manifest, or in the cluster.
func (i *installation) judge(object *unstructured.Unstructured) (Result, string) {
	version, kind := object.GetAPIVersion(), object.GetKind()
	for _, row := range removed {
		if row.version == version && (len(row.kinds) == 0 || slices.Contains(row.kinds, kind)) {
			return Cannot, "Kubernetes has no " + version + " of " + kind + " any more. Use " + row.instead + "."
		}
	}
	group, _, _ := strings.Cut(version, "/")
	text := func(path ...string) string {
		value, _, _ := unstructured.NestedString(object.Object, path...)
		return value
	}
	switch {
	case group == "traefik.io" || group == "traefik.containo.us":
		return Cannot, "kedge's gateway does not serve kinds of Traefik. Write an Ingress or an HTTPRoute, or install Traefik from its chart first: see docs/gateway.md."
	case group == "upgrade.cattle.io":
		return Changes, "kedge does not read Plans of the system-upgrade-controller. It has Plans of its own, which need no pods: see docs/upgrades.md."
	case group == "k3s.cattle.io" && kind == "Addon":
		return Changes, "kedge keeps no Addons. It keeps what it applied in ConfigMaps of its own."
	case group == "k3s.cattle.io" && kind == "ETCDSnapshotFile":
		return Changes, "kedge shows its snapshots as SnapshotFiles: `kubectl get snapshotfiles`."
	case kind == "HelmChartConfig" && group == "helm.cattle.io" && object.GetName() == traefik:
		return Changes, "It has no effect until there is a HelmChart called traefik. The gateway has settings of its own: see docs/gateway.md."
	case kind == "HelmChart" && group == "helm.cattle.io" && text("spec", "helmVersion") == "v2":
		return Changes, "kedge ignores helmVersion, and installs the chart with Helm 4."
	case kind == "StorageClass" && group == "storage.k8s.io" && text("provisioner") == localstorage.K3sProvisioner && text("parameters", "pathPattern") != "":
		return Cannot, "kedge gives the folders of volumes names of its own. Make the class without pathPattern: a class cannot be changed."
	case kind == "Ingress" && group == "networking.k8s.io" && !i.noGateway:
		return judgeIngress(object)
	case kind == "Gateway" && group == "gateway.networking.k8s.io" && !i.noGateway && text("spec", "gatewayClassName") == traefik:
		return Changes, "The gateway serves the class kedge. Set gatewayClassName: kedge."
	}
	return Works, ""
}

// nameOf returns KIND NAMESPACE/NAME of an object.
func nameOf(object *unstructured.Unstructured) string {
	name := object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name = namespace + "/" + name
	}
	return object.GetKind() + " " + name
}
