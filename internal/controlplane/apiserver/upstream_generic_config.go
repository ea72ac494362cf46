// Follows k8s.io/kubernetes v1.37.2, pkg/controlplane/apiserver/config.go.

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// resyncPeriod is upstream's for the API server's own informers.
const resyncPeriod = 10 * time.Minute

// newGenericConfig is upstream's BuildGenericConfig without the parts that read the
// API, which applyReaders adds. Upstream gives those parts informers whose client dials
// the server's own port over TLS, and accepts no other client. further are more types that
// OpenAPI documents describe.
//
//upstream:follows k8s.io/kubernetes/pkg/controlplane/apiserver/config.go BuildGenericConfig
func newGenericConfig(ctx context.Context, opts options.CompletedOptions, loopback http.RoundTripper, transform cache.TransformFunc, further []*runtime.Scheme) (*genericapiserver.Config, *serverstorage.DefaultStorageFactory, *objectcache.Cache, error) {
	// Upstream skips options that are nil.
	features, authentication, authorization := opts.Features, opts.Authentication, opts.Authorization
	opts.Features, opts.Authentication, opts.Authorization = nil, nil, nil
	generic, _, storage, err := controlplaneapiserver.BuildGenericConfig(
		opts.CompletedOptions,
		append([]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme}, further...),
		controlplane.DefaultAPIResourceConfigSource(),
		generatedopenapi.GetOpenAPIDefinitions,
		nil,
	)
	opts.Features, opts.Authentication, opts.Authorization = features, authentication, authorization
	if err != nil {
		return nil, nil, nil, err
	}
	callInProcess(generic.LoopbackClientConfig, loopback)
	client, err := kubernetes.NewForConfig(generic.LoopbackClientConfig)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("create client of API server: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, resyncPeriod, informers.WithTransform(transform))
	return generic, storage, objectcache.New(ctx, factory, client), nil
}

// applyReaders adds what newGenericConfig leaves out: priority and fairness,
// authentication and authorization.
//
//upstream:follows k8s.io/kubernetes/pkg/controlplane/apiserver/config.go BuildGenericConfig BuildAuthorizer
func applyReaders(opts options.CompletedOptions, generic *genericapiserver.Config, factory informers.SharedInformerFactory) error {
	client, err := kubernetes.NewForConfig(generic.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("create client of API server: %w", err)
	}
	if err := opts.Features.ApplyTo(generic, client, factory); err != nil {
		return err
	}
	ctx := wait.ContextForChannel(generic.DrainedNotify())
	if err := opts.Authentication.ApplyTo(ctx, &generic.Authentication, generic.SecureServing, generic.EgressSelector,
		generic.OpenAPIConfig, generic.OpenAPIV3Config, client, factory, generic.APIServerID); err != nil {
		return err
	}
	var rbac bool
	generic.Authorization.Authorizer, generic.RuleResolver, rbac, err = controlplaneapiserver.BuildAuthorizer(ctx,
		opts.CompletedOptions, generic.EgressSelector, generic.APIServerID, factory)
	if err != nil {
		return fmt.Errorf("invalid authorization config: %w", err)
	}
	return replacePolicyHooks(generic, rbac)
}
