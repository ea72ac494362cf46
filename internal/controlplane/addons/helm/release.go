package helm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// defaultTimeout is k3s's, for HelmCharts without a timeout.
	defaultTimeout = 5 * time.Minute
	// maxHistory is the default of the command helm.
	maxHistory = 10
)

// releases are Helm's releases of one name in one namespace.
type releases struct {
	*action.Configuration
	name, namespace string
	waiting         []kube.WaitOption
}

// releasesOf returns the releases of a HelmChart. Operations on them end with
// ctx.
func (c *controller) releasesOf(ctx context.Context, name, namespace string) *releases {
	quiet := slog.DiscardHandler
	getter := newClients(c.config, namespace)
	client := kube.New(getter)
	client.Namespace = namespace
	client.SetLogger(quiet)
	records := driver.NewSecrets(c.api.CoreV1().Secrets(namespace))
	records.SetLogger(quiet)
	r := &releases{action.NewConfiguration(action.ConfigurationSetLogger(quiet)), name, namespace, []kube.WaitOption{kube.WithWaitContext(ctx)}}
	r.RESTClientGetter, r.KubeClient, r.Releases = getter, client, storage.Init(records)
	r.Releases.SetLogger(quiet)
	r.SetHookOutputFunc(func(_, _, _ string) io.Writer { return io.Discard })
	return r
}

// last returns the latest release, or nil. If kedge ended during an operation,
// last marks the release as failed: nothing else would continue the operation.
func (r *releases) last() (*release.Release, error) {
	found, err := r.Releases.Last(r.name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read releases: %w", err)
	}
	last, ok := found.(*release.Release)
	if !ok {
		return nil, fmt.Errorf("release %s is of a kind that this Helm does not know", r.name)
	}
	if last.Info.Status.IsPending() || last.Info.Status == common.StatusUninstalling {
		last.SetStatus(common.StatusFailed, "interrupted")
		if err := r.Releases.Update(last); err != nil {
			return nil, fmt.Errorf("record interrupted release: %w", err)
		}
	}
	return last, nil
}

// everDeployed tells whether one of the releases has ever worked.
func (r *releases) everDeployed() (bool, error) {
	history, err := r.Releases.History(r.name)
	if err != nil {
		return false, fmt.Errorf("read releases: %w", err)
	}
	for _, found := range history {
		if one, ok := found.(*release.Release); ok && (one.Info.Status == common.StatusDeployed || one.Info.Status == common.StatusSuperseded) {
			return true, nil
		}
	}
	return false, nil
}

// usable returns the latest release if it can be upgraded, or nil if the chart has to
// be installed. It removes a release that never worked, unless the failure policy
// keeps it.
func (r *releases) usable(spec *chartSpec) (*release.Release, error) {
	last, err := r.last()
	if last == nil || err != nil {
		return nil, err
	}
	worked, err := r.everDeployed()
	if err != nil || worked || spec.keepsFailed() {
		return last, err
	}
	if err := r.uninstall(spec.timeout()); err != nil {
		return nil, &fault{"UninstallFailed", err, false}
	}
	return nil, nil
}

// install installs a chart. It removes a failed release, unless the failure policy
// keeps it.
func (r *releases) install(ctx context.Context, spec *chartSpec, chart *chartv2.Chart, values map[string]any) error {
	i := action.NewInstall(r.Configuration)
	i.ReleaseName, i.Namespace, i.CreateNamespace, i.TakeOwnership = r.name, r.namespace, spec.CreateNamespace, spec.TakeOwnership
	i.ForceConflicts = spec.ForceConflicts
	// As with k3s, install does not wait for pods, which may need time to pull
	// images.
	i.WaitStrategy, i.WaitOptions, i.Timeout = kube.HookOnlyStrategy, r.waiting, spec.timeout()
	// The API server reports what does not fit its kinds. Validation here would need
	// all of its OpenAPI documents.
	i.DisableOpenAPIValidation = true
	i.Replace = true // an uninstalled release may have kept its history
	_, err := i.RunWithContext(ctx, chart, values)
	if err != nil && !spec.keepsFailed() {
		return errors.Join(err, r.uninstall(spec.timeout()))
	}
	return err
}

// upgrade upgrades to a chart and waits until it works. Without a failure policy,
// it rolls back a failed upgrade.
func (r *releases) upgrade(ctx context.Context, spec *chartSpec, chart *chartv2.Chart, values map[string]any) error {
	u := action.NewUpgrade(r.Configuration)
	u.Namespace, u.TakeOwnership, u.ForceConflicts = r.namespace, spec.TakeOwnership, spec.ForceConflicts
	u.WaitStrategy, u.WaitOptions, u.Timeout = kube.StatusWatcherStrategy, r.waiting, spec.timeout()
	u.RollbackOnFailure = spec.FailurePolicy == ""
	u.ResetValues, u.MaxHistory, u.DisableOpenAPIValidation = true, maxHistory, true
	_, err := u.RunWithContext(ctx, r.name, chart, values)
	return err
}

// uninstall removes the release, if there is one.
func (r *releases) uninstall(timeout time.Duration) error {
	u := action.NewUninstall(r.Configuration)
	u.IgnoreNotFound, u.Timeout = true, timeout
	u.WaitStrategy, u.WaitOptions = kube.HookOnlyStrategy, r.waiting
	_, err := u.Run(r.name)
	return err
}

// keepsFailed tells whether a failed release stays as it is.
func (s *chartSpec) keepsFailed() bool {
	return s.FailurePolicy == abort || s.FailurePolicy == retry
}

func (s *chartSpec) timeout() time.Duration {
	if s.Timeout != nil && s.Timeout.Duration > 0 {
		return s.Timeout.Duration
	}
	return defaultTimeout
}

// clients is Helm's access to the API. It implements the RESTClientGetter of
// k8s.io/cli-runtime/pkg/genericclioptions.
type clients struct {
	config    *rest.Config
	namespace string
	discovery discovery.CachedDiscoveryInterface
	mapper    meta.RESTMapper
}

func newClients(config *rest.Config, namespace string) *clients {
	cached := memory.NewMemCacheClient(discovery.NewDiscoveryClientForConfigOrDie(config))
	return &clients{config, namespace, cached, restmapper.NewDeferredDiscoveryRESTMapper(cached)}
}

func (c *clients) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(c.config), nil }

func (c *clients) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return c.discovery, nil
}

func (c *clients) ToRESTMapper() (meta.RESTMapper, error) { return c.mapper, nil }

func (c *clients) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	overrides := &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: c.namespace}}
	return clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), overrides)
}
