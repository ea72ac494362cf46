package helm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	release "helm.sh/helm/v4/pkg/release/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// These are the conditions of a HelmChart. The second one is k3s's.
const (
	readyCondition  = "Ready"
	failedCondition = "Failed"
)

// fault says why a HelmChart could not be carried out, for its user.
type fault struct {
	reason string
	error
	// final is true if there is no other attempt until somebody changes
	// something.
	final bool
}

func (f *fault) Unwrap() error { return f.error }

// sync carries out a HelmChart. After an error it is called again.
func (c *controller) sync(ctx context.Context, name cache.ObjectName) error {
	// The object is not read from a cache, because its status records what has
	// been done already.
	object, err := c.client.Resource(chartResource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, unmanaged := object.GetAnnotations()[unmanagedAnnotation]; unmanaged {
		return nil
	}
	chart, strange := decode[helmChart](object)
	switch {
	case strange != nil && !runtime.IsStrictDecodingError(strange):
		err = &fault{"Invalid", fmt.Errorf("read HelmChart: %w", strange), true}
	case object.GetDeletionTimestamp() != nil:
		err = c.uninstall(ctx, chart, object)
	default:
		err = c.reconcile(ctx, chart, object, strange)
	}
	if f, told := errors.AsType[*fault](err); told && ctx.Err() == nil {
		return c.fail(ctx, chart, object, f)
	}
	return err
}

// reconcile brings the release of a HelmChart up to date. strange names its unknown
// fields.
func (c *controller) reconcile(ctx context.Context, chart *helmChart, object *unstructured.Unstructured, strange error) (err error) {
	if !slices.Contains(object.GetFinalizers(), finalizer) {
		object.SetFinalizers(append(object.GetFinalizers(), finalizer))
		if object, err = c.update(ctx, object); err != nil {
			return err
		}
	}
	config := &helmChartConfig{}
	more, err := c.client.Resource(configResource).Namespace(chart.Namespace).Get(ctx, chart.Name, metav1.GetOptions{})
	if err == nil {
		config, err = decode[helmChartConfig](more)
	}
	if err != nil && !apierrors.IsNotFound(err) && !runtime.IsStrictDecodingError(err) {
		return &fault{"Invalid", fmt.Errorf("read HelmChartConfig: %w", err), false}
	}
	values, err := c.merged(ctx, chart, config)
	if err != nil {
		return &fault{"Invalid", err, false}
	}
	wanted, err := c.identify(chart, config, values)
	if err != nil {
		return &fault{"Invalid", err, false}
	}
	if chart.Status.Tried == wanted {
		return nil
	}
	if strange != nil {
		c.events.Eventf(reference(object), corev1.EventTypeWarning, "Unknown", "%v", strange)
	}
	if config.Spec.FailurePolicy != "" {
		chart.Spec.FailurePolicy = config.Spec.FailurePolicy
	}
	if policy := chart.Spec.FailurePolicy; !slices.Contains([]string{"", abort, retry, reinstall}, policy) {
		return &fault{"Invalid", fmt.Errorf("unknown failurePolicy %q: use %s, %s or %s, or leave it out", policy, abort, retry, reinstall), true}
	}
	chart.Spec.ForceConflicts = chart.Spec.ForceConflicts || config.Spec.ForceConflicts
	did, err := c.deploy(ctx, chart, values)
	if f, _ := errors.AsType[*fault](err); err == nil || f != nil && f.final {
		chart.Status.Tried = wanted
	}
	if err != nil {
		return err
	}
	message := fmt.Sprintf("%s chart %s as revision %d in %s", did, chart.Status.Chart, chart.Status.Revision, chart.Status.Namespace)
	c.log.Infof("HelmChart %s/%s: %s", chart.Namespace, chart.Name, message)
	c.events.Event(reference(object), corev1.EventTypeNormal, did, message)
	return c.conclude(ctx, chart, object, metav1.ConditionTrue, did, message)
}

// identify returns a digest of everything that a release is made from.
func (c *controller) identify(chart *helmChart, config *helmChartConfig, values map[string]any) (string, error) {
	local, err := c.digest(&chart.Spec)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal([]any{chart.Spec, config.Spec, values, local})
	if err != nil {
		return "", fmt.Errorf("encode HelmChart: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// deploy installs or upgrades the release, and returns which of the two it did.
func (c *controller) deploy(ctx context.Context, chart *helmChart, values map[string]any) (did string, err error) {
	spec, namespace := &chart.Spec, chart.namespace()
	loaded, err := c.fetch(ctx, chart)
	if err != nil {
		return "", &fault{"NoChart", err, false}
	}
	if before := chart.Status.Namespace; before != "" && before != namespace {
		if err := c.releasesOf(ctx, chart.Name, before).uninstall(spec.timeout()); err != nil {
			return "", &fault{"UninstallFailed", err, false}
		}
		chart.note(nil)
	}
	releases := c.releasesOf(ctx, chart.Name, namespace)
	last, err := releases.usable(spec)
	if err != nil {
		return "", err
	}
	did, reason := "Installed", "InstallFailed"
	if last == nil {
		err = releases.install(ctx, spec, loaded, values)
	} else {
		did, reason = "Upgraded", "UpgradeFailed"
		err = releases.upgrade(ctx, spec, loaded, values)
	}
	if ctx.Err() != nil {
		return "", ctx.Err() // the next leader finds the interrupted release
	}
	now, unread := releases.last()
	if unread != nil {
		return "", unread
	}
	chart.note(now)
	if err == nil {
		return did, nil
	}
	switch {
	//upstream:relies-on k8s.io/apimachinery/pkg/api/errors/errors.go NewNotFound
	case apierrors.IsNotFound(err) && strings.Contains(err.Error(), "namespaces"):
		err = fmt.Errorf("%w. Create the namespace, or set createNamespace: true", err)
	case apierrors.IsConflict(err):
		err = fmt.Errorf("%w. Somebody has changed a field that the chart sets: undo that, set the same in the values, or set forceConflicts: true", err)
	}
	// If there is no new release, nothing has happened yet.
	acted := now != nil && (last == nil || now.Version != last.Version)
	if acted && spec.FailurePolicy == reinstall {
		if kept := releases.uninstall(spec.timeout()); kept != nil {
			err = fmt.Errorf("%w. The release could not be removed for a new install: %w", err, kept)
		}
		acted = false
	}
	if acted {
		err = fmt.Errorf("%w. kedge tries again when the HelmChart changes", err)
	}
	return "", &fault{reason, err, acted}
}

// note records the present release in the status.
func (c *helmChart) note(now *release.Release) {
	c.Status.Namespace, c.Status.Revision, c.Status.Chart = "", 0, ""
	if now != nil {
		c.Status.Namespace, c.Status.Revision = now.Namespace, now.Version
		if now.Chart != nil && now.Chart.Metadata != nil {
			c.Status.Chart = now.Chart.Metadata.Name + "-" + now.Chart.Metadata.Version
		}
	}
}

// uninstall removes the release of a HelmChart that is being deleted.
func (c *controller) uninstall(ctx context.Context, chart *helmChart, object *unstructured.Unstructured) error {
	if !slices.Contains(object.GetFinalizers(), finalizer) {
		return nil
	}
	namespace := cmp.Or(chart.Status.Namespace, chart.namespace())
	if err := c.releasesOf(ctx, chart.Name, namespace).uninstall(chart.Spec.timeout()); err != nil {
		return &fault{"UninstallFailed", fmt.Errorf("%w. To keep the release as it is, remove the finalizer %s from the HelmChart", err, finalizer), false}
	}
	object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(name string) bool { return name == finalizer }))
	if _, err := c.update(ctx, object); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	c.log.Infof("Uninstalled %s/%s", namespace, chart.Name)
	return nil
}

func (c *controller) update(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return c.client.Resource(chartResource).Namespace(object.GetNamespace()).Update(ctx, object, metav1.UpdateOptions{})
}

// fail reports a fault to the user, and returns it if there will be another
// attempt.
func (c *controller) fail(ctx context.Context, chart *helmChart, object *unstructured.Unstructured, f *fault) error {
	message := events.Message(f.Error())
	if last := meta.FindStatusCondition(chart.Status.Conditions, failedCondition); last != nil && last.ObservedGeneration == object.GetGeneration() {
		message = events.Steady(last.Message, message)
	}
	c.events.Event(reference(object), corev1.EventTypeWarning, f.reason, message)
	if err := c.conclude(ctx, chart, object, metav1.ConditionFalse, f.reason, message); err != nil || !f.final {
		return errors.Join(f, err)
	}
	c.log.Warnf("HelmChart %s/%s: %v", object.GetNamespace(), object.GetName(), f)
	return nil
}

// conclude writes the status.
func (c *controller) conclude(ctx context.Context, chart *helmChart, object *unstructured.Unstructured, ready metav1.ConditionStatus, reason, message string) error {
	failed := metav1.ConditionFalse
	if ready == metav1.ConditionFalse {
		failed = metav1.ConditionTrue
	}
	chart.Name, chart.Namespace = object.GetName(), object.GetNamespace()
	for kind, status := range map[string]metav1.ConditionStatus{readyCondition: ready, failedCondition: failed} {
		meta.SetStatusCondition(&chart.Status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: object.GetGeneration(),
		})
	}
	return c.patchStatus(ctx, chart)
}

func reference(object *unstructured.Unstructured) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), UID: object.GetUID(),
		Namespace: object.GetNamespace(), Name: object.GetName(), ResourceVersion: object.GetResourceVersion(),
	}
}
