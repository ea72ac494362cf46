package helm

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
)

// These are the kinds of /manifests/helm.yaml, which are k3s's
// (github.com/k3s-io/helm-controller, pkg/apis/helm.cattle.io/v1).
//
//upstream:relies-on github.com/k3s-io/helm-controller/pkg/apis/helm.cattle.io/v1/types.go HelmChart HelmChartSpec HelmChartStatus HelmChartConfig HelmChartConfigSpec SecretSpec
var (
	chartResource  = schema.GroupVersionResource{Group: "helm.cattle.io", Version: "v1", Resource: "helmcharts"}
	configResource = schema.GroupVersionResource{Group: "helm.cattle.io", Version: "v1", Resource: "helmchartconfigs"}
)

const (
	// finalizer keeps a HelmChart until its release is uninstalled.
	finalizer = "kedge.dev/helm"
	// unmanagedAnnotation is k3s's. It marks HelmCharts that kedge must leave
	// alone.
	//upstream:relies-on github.com/k3s-io/helm-controller/pkg/controllers/chart/chart.go AnnotationUnmanaged
	unmanagedAnnotation = "helmcharts.helm.cattle.io/unmanaged"
)

// The failure policies say what happens to a release that failed. Without a
// policy, a failed upgrade is rolled back, and a failed install is removed and
// tried again.
//
//upstream:relies-on github.com/k3s-io/helm-controller/pkg/apis/helm.cattle.io/v1/types.go FailurePolicyAbort FailurePolicyReinstall FailurePolicyRetry
const (
	abort     = "abort"     // leaves the release as it is until the HelmChart changes
	retry     = "retry"     // does the same as abort; in k3s they differ in who repairs the release
	reinstall = "reinstall" // removes the release and installs it again
)

// helmChart is a HelmChart.
type helmChart struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              chartSpec   `json:"spec"`
	Status            chartStatus `json:"status"`
}

// chartSpec writes no field that is empty. Its digest tells whether the release is
// up to date (identify), and an upgrade of kedge that adds a field must not upgrade
// all charts.
type chartSpec struct {
	Overrides       `json:",inline"`
	TargetNamespace string `json:"targetNamespace,omitempty"`
	CreateNamespace bool   `json:"createNamespace,omitempty"`
	TakeOwnership   bool   `json:"takeOwnership,omitempty"`

	Chart        string `json:"chart,omitempty"`
	Version      string `json:"version,omitempty"`
	Repo         string `json:"repo,omitempty"`
	ChartContent string `json:"chartContent,omitempty"`

	RepoCA                string                       `json:"repoCA,omitempty"`
	RepoCAConfigMap       *corev1.LocalObjectReference `json:"repoCAConfigMap,omitempty"`
	AuthSecret            *corev1.LocalObjectReference `json:"authSecret,omitempty"`
	AuthPassCredentials   bool                         `json:"authPassCredentials,omitempty"`
	DockerRegistrySecret  *corev1.LocalObjectReference `json:"dockerRegistrySecret,omitempty"`
	InsecureSkipTLSVerify bool                         `json:"insecureSkipTLSVerify,omitempty"`
	PlainHTTP             bool                         `json:"plainHTTP,omitempty"`

	Set     map[string]intstr.IntOrString `json:"set,omitempty"`
	Timeout *metav1.Duration              `json:"timeout,omitempty"`

	// These fields are about k3s's jobs. kedge has no jobs and ignores them.
	Bootstrap          bool           `json:"bootstrap,omitempty"`
	HelmVersion        string         `json:"helmVersion,omitempty"`
	JobImage           string         `json:"jobImage,omitempty"`
	BackOffLimit       *int32         `json:"backOffLimit,omitempty"`
	PodSecurityContext map[string]any `json:"podSecurityContext,omitempty"`
	SecurityContext    map[string]any `json:"securityContext,omitempty"`
}

// Overrides are the fields that HelmCharts and HelmChartConfigs have in common.
type Overrides struct {
	Values         map[string]any `json:"values,omitempty"`
	ValuesContent  string         `json:"valuesContent,omitempty"`
	ValuesSecrets  []secretValues `json:"valuesSecrets,omitempty"`
	FailurePolicy  string         `json:"failurePolicy,omitempty"`
	ForceConflicts bool           `json:"forceConflicts,omitempty"`
}

// secretValues names keys of a Secret that contain values as text.
type secretValues struct {
	Name string   `json:"name"`
	Keys []string `json:"keys,omitempty"`
	// IgnoreUpdates also means that the Secret may be missing.
	IgnoreUpdates bool `json:"ignoreUpdates,omitempty"`
}

// helmChartConfig is a HelmChartConfig. It adds to the HelmChart of the same
// name.
type helmChartConfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Overrides `json:"spec"`
}

type chartStatus struct {
	// Namespace, Revision and Chart describe the present release. They are
	// written even if they are empty, because a patch removes no fields.
	Namespace string `json:"namespace"`
	Revision  int    `json:"revision"`
	Chart     string `json:"chart"`
	// Tried is the digest of the last install or upgrade, successful or not.
	Tried      string             `json:"tried"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// namespace returns the namespace of the release.
func (c *helmChart) namespace() string {
	return cmp.Or(c.Spec.TargetNamespace, c.Namespace)
}

// decode reads an object. It returns an error for unknown fields, which the API
// accepts, together with what it could read.
func decode[T any](object *unstructured.Unstructured) (*T, error) {
	into := new(T)
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true)
	return into, err
}

// patchStatus writes the status of a HelmChart.
func (c *controller) patchStatus(ctx context.Context, chart *helmChart) error {
	charts := c.client.Resource(chartResource).Namespace(chart.Namespace)
	if err := mergepatch.Send(ctx, charts, chart.Name, map[string]any{"status": chart.Status}, "status"); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
