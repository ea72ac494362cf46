// Package addons applies the objects that every cluster of kedge begins with:
// those of the manifests package, and a RuntimeClass for each container runtime
// found on the host. The server package runs it once the API server is ready.
package addons

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/manifests"
)

// fieldManager owns the applied fields. Fields that others set in the same
// objects, for example a user's labels, stay.
const fieldManager = "kedge"

const (
	// firstRetry is the pause before the second attempt. Each later pause is twice as
	// long, up to lastRetry.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
	// startPatience is for how long failures are not logged: the first attempts usually fail
	// while the server starts.
	startPatience = 2 * time.Second
)

// writers is how many objects are applied at once: the datastore syncs the disk once for all
// of them.
const writers = 8

// Config is what Addons needs.
type Config struct {
	// Client may do everything, because it hands out all rights.
	Client *rest.Config
	// Cluster must have been validated.
	Cluster config.Cluster
	// RuntimeClasses are the names of the runtimes' handlers.
	RuntimeClasses []string
}

// Addons is the component that applies the objects once.
type Addons struct {
	cfg    Config
	log    *logrus.Entry
	client dynamic.Interface
	// metadata reads large objects without their content.
	metadata metadata.Interface
}

// New makes the component, which implements component.Component.
func New(cfg Config) *Addons {
	return &Addons{cfg: cfg, log: logrus.WithField("component", "addons")}
}

// Name implements component.Component.
func (*Addons) Name() string { return "addons" }

// Run implements component.Component. It tries until everything is applied: right
// after its start, the API server lacks the namespace kube-system.
//
// Run is ready when all objects exist, even as an earlier kedge applied them.
// Until then a webhook of the user may refuse all writes, because the node has
// yet to start the webhook's pod. The definitions of the Gateway API come last, because
// they are large and nothing waits for them.
func (a *Addons) Run(ctx context.Context, ready func()) error {
	objects, err := a.objects()
	if err != nil {
		return err
	}
	if err := a.connect(); err != nil {
		return err
	}
	objects, ofGatewayAPI := withoutGatewayAPI(objects)
	announce := sync.OnceFunc(ready)
	began := time.Now()
	applying := loop.Loop{Log: a.log, First: firstRetry, Last: lastRetry, Quiet: func(error) bool { return time.Since(began) < startPatience }}
	if applying.Until(ctx, func(ctx context.Context) (err error) {
		var missing bool
		objects, missing, err = a.applyAll(ctx, objects)
		if !missing {
			announce()
		}
		return err
	}) != nil {
		return nil
	}
	if err := a.removeDisabled(ctx); err != nil && ctx.Err() == nil {
		a.log.Warnf("Cannot remove all objects of disabled parts. The next start of kedge tries again: %v", err)
	}
	if a.cfg.Cluster.Has(config.Gateway) {
		_ = applying.Until(ctx, func(ctx context.Context) error { return a.applyGatewayAPI(ctx, ofGatewayAPI) })
	}
	<-ctx.Done()
	return nil
}

// connect makes the clients, unless a test has made them.
func (a *Addons) connect() (err error) {
	if a.client == nil {
		if a.client, err = dynamic.NewForConfig(a.cfg.Client); err != nil {
			return fmt.Errorf("make client: %w", err)
		}
	}
	if a.metadata == nil {
		if a.metadata, err = metadata.NewForConfig(a.cfg.Client); err != nil {
			return fmt.Errorf("make client for metadata: %w", err)
		}
	}
	return nil
}

// objects returns everything that has to be applied.
func (a *Addons) objects() ([]*unstructured.Unstructured, error) {
	folders := []string{"."}
	for _, part := range config.Parts() {
		if a.cfg.Cluster.Has(part) {
			folders = append(folders, string(part))
		}
	}
	var objects []*unstructured.Unstructured
	for _, folder := range folders {
		read, err := read(manifests.Files, folder)
		if err != nil {
			return nil, err
		}
		objects = append(objects, read...)
	}
	if err := setClusterDNS(objects, a.cfg.Cluster.DNSAddresses()); err != nil {
		return nil, err
	}
	for _, handler := range a.cfg.RuntimeClasses {
		objects = append(objects, runtimeClass(handler))
	}
	for _, object := range objects {
		if err := mark(object); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// removeDisabled removes the objects that kedge made for parts that are now disabled.
// CustomResourceDefinitions stay, because the user's objects would go with them. If a
// Service of the user answers the API group of a part, all objects of the part stay.
func (a *Addons) removeDisabled(ctx context.Context) error {
	var faults []error
	for _, part := range config.Parts() {
		if a.cfg.Cluster.Has(part) {
			continue
		}
		objects, err := read(manifests.Files, string(part))
		if err != nil {
			return err
		}
		for _, object := range objects {
			if object.GetKind() == definitionKind {
				continue
			}
			client := a.resource(object)
			live, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
			if err == nil && object.GetKind() == apiServiceKind && service(live) != "" {
				break // the user has another program for this part, and with it the rest of the objects
			}
			if err == nil && live.GetAnnotations()[digestAnnotation] != "" && !isLeftAlone(live) {
				// The EndpointSlices go first: if that fails, the next start still finds the Service.
				if object.GetKind() == "Service" {
					err = a.removeSlices(ctx, object)
				}
				if err == nil {
					err = client.Delete(ctx, object.GetName(), metav1.DeleteOptions{})
				}
			}
			if err != nil && !apierrors.IsNotFound(err) {
				faults = append(faults, fmt.Errorf("remove %s %s of %s: %w", object.GetKind(), object.GetName(), part, err))
			}
		}
	}
	if !a.cfg.Cluster.Has(config.Gateway) {
		faults = append(faults, a.clearGateway(ctx))
	}
	if !a.cfg.Cluster.Has(config.ServiceLB) {
		faults = append(faults, a.clearLoadBalancers(ctx))
	}
	return errors.Join(faults...)
}

// removeSlices removes the EndpointSlices of a Service that kedge made: they have no
// owner.
func (a *Addons) removeSlices(ctx context.Context, service *unstructured.Unstructured) error {
	slices := a.client.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")).Namespace(service.GetNamespace())
	return slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.GetName()})
}

// resource returns the client for an object.
func (a *Addons) resource(object *unstructured.Unstructured) dynamic.ResourceInterface {
	// The guess is right for the kinds that kedge applies, and saves a round of
	// discovery at the start.
	resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	if namespace := object.GetNamespace(); namespace != "" {
		return a.client.Resource(resource).Namespace(namespace)
	}
	return a.client.Resource(resource)
}

// applyAll applies the objects, several at once and in no order. It returns those that
// failed, whether any of them does not exist at all, and the reason of the first failure.
func (a *Addons) applyAll(ctx context.Context, objects []*unstructured.Unstructured) (failed []*unstructured.Unstructured, missing bool, reason error) {
	faults, there := make([]error, len(objects)), make([]bool, len(objects))
	var working errgroup.Group
	working.SetLimit(writers)
	for i, object := range objects {
		working.Go(func() error {
			there[i], faults[i] = a.apply(ctx, object)
			return nil
		})
	}
	_ = working.Wait() // the faults are kept
	for i, object := range objects {
		if faults[i] == nil {
			continue
		}
		failed = append(failed, object)
		// This kind is not built in, so the API may know it only a moment later.
		missing = missing || !there[i] && object.GetKind() != snapshotClassKind
		if reason == nil {
			reason = fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), faults[i])
		}
	}
	return failed, missing, reason
}

// apply applies an object that is not as it should be. It returns whether an
// object of that name exists.
func (a *Addons) apply(ctx context.Context, object *unstructured.Unstructured) (there bool, err error) {
	client := a.resource(object)
	live, err := client.Get(ctx, object.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, err
	case isLeftAlone(live):
		if theirs := service(live); theirs != "" {
			a.log.Infof("The Service %s answers the API group %s in place of kedge, because the APIService of that name says so. "+
				"To have kedge answer: `kedge kubectl delete apiservice %[2]s`", theirs, object.GetName())
		}
		return true, nil
	default:
		there = true
	}
	if defaultAnnotations[object.GetKind()] != "" {
		if object, err = a.withDefault(ctx, object, live); err != nil {
			return there, err
		}
	}
	if there && includes(live.Object, object.Object) {
		return true, nil
	}
	_, err = client.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	// Some fields cannot be changed in place: the addresses of a Service when
	// cluster-dns changes, the role of a binding, and the handler of a
	// RuntimeClass. A CustomResourceDefinition is never deleted, because the user's
	// objects would go with it.
	if there && apierrors.IsInvalid(err) && object.GetKind() != definitionKind {
		if err := a.tryAgain(ctx, object, live); err != nil {
			return true, fmt.Errorf("try to create it again, before it is deleted: %w", err)
		}
		if err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return true, fmt.Errorf("delete to create it again: %w", err)
		}
		_, err = client.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		there = err == nil
	}
	return there, err
}

// tryAgain fails if the API would refuse to create an object after the live one has been
// deleted. Without it, an address that is taken would leave the cluster without its DNS.
func (a *Addons) tryAgain(ctx context.Context, object, live *unstructured.Unstructured) error {
	trial := object.DeepCopy()
	trial.SetName(object.GetName() + "-trial")
	if err := leaveAddresses(trial, live); err != nil {
		return err
	}
	_, err := a.resource(object).Create(ctx, trial, metav1.CreateOptions{FieldManager: fieldManager, DryRun: []string{metav1.DryRunAll}})
	return err
}
