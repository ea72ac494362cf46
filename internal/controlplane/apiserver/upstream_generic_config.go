// Follows k8s.io/kubernetes v1.37.2, pkg/controlplane/apiserver/config.go.

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// resyncPeriod is upstream's for the API server's own informers.
const resyncPeriod = 10 * time.Minute

// newGenericConfig is upstream's BuildGenericConfig without the parts that read the
// API, which applyReaders adds. Upstream gives those parts informers whose client dials
// the server's own port over TLS, and accepts no other client. newGenericConfig also
// leaves out the certificate of that port, which upstream makes at each start with two RSA
// keys. That is a quarter of a second of processor time. further are more types that
// OpenAPI documents describe.
//
//upstream:follows k8s.io/kubernetes/pkg/controlplane/apiserver/config.go BuildGenericConfig
//upstream:relies-on k8s.io/apiserver/pkg/server/options/serving_with_loopback.go SecureServingOptionsWithLoopback.applyTo
//upstream:relies-on k8s.io/apiserver/pkg/server/config_selfclient.go SecureServingInfo.NewLoopbackClientConfig SecureServingInfo.NewClientConfig
func newGenericConfig(ctx context.Context, opts options.CompletedOptions, loopback http.RoundTripper, transform cache.TransformFunc, further []*runtime.Scheme) (*genericapiserver.Config, *serverstorage.DefaultStorageFactory, *objectcache.Cache, error) {
	codecs := legacyscheme.Codecs
	if utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) {
		codecs = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	generic := genericapiserver.NewConfig(codecs)
	generic.Flagz = opts.Flagz
	resources := controlplane.DefaultAPIResourceConfigSource()
	generic.MergedResourceConfig = resources
	if err := errors.Join(opts.GenericServerRunOptions.ApplyTo(generic), opts.SecureServing.SecureServingOptions.ApplyTo(&generic.SecureServing)); err != nil {
		return nil, nil, nil, err
	}
	address, port, err := genericapiserver.LoopbackHostPort(generic.SecureServing.Listener.Addr().String())
	if err != nil {
		return nil, nil, nil, err
	}
	generic.LoopbackClientConfig = &rest.Config{
		QPS:  -1,
		Host: "https://" + net.JoinHostPort(address, port),
		// The server gives the user of this token all rights. No client sends it.
		BearerToken:        uuid.New().String(),
		ContentConfig:      rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf},
		DisableCompression: true,
	}
	callInProcess(generic.LoopbackClientConfig, loopback)
	client, err := kubernetes.NewForConfig(generic.LoopbackClientConfig)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("create client of API server: %w", err)
	}
	if err := opts.APIEnablement.ApplyTo(generic, resources, legacyscheme.Scheme); err != nil {
		return nil, nil, nil, err
	}
	if err := opts.EgressSelector.ApplyTo(generic); err != nil {
		return nil, nil, nil, err
	}
	if err := opts.Traces.ApplyTo(generic.EgressSelector, generic); err != nil {
		return nil, nil, nil, err
	}
	definitions := openapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	namer := openapinamer.NewDefinitionNamer(append([]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme}, further...)...)
	generic.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	generic.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	generic.OpenAPIConfig.Info.Title, generic.OpenAPIV3Config.Info.Title = "Kubernetes", "Kubernetes"
	generic.LongRunningFunc = filters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"),
		sets.NewString("attach", "exec", "proxy", "log", "portforward"),
	)
	storage, err := newStorageFactory(opts, generic)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := opts.Audit.ApplyTo(generic); err != nil {
		return nil, nil, nil, err
	}
	generic.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	factory := informers.NewSharedInformerFactoryWithOptions(client, resyncPeriod, informers.WithTransform(transform))
	return generic, storage, objectcache.New(ctx, factory, client), nil
}

// newStorageFactory is the part of upstream's BuildGenericConfig that configures where
// objects are stored.
//
//upstream:follows k8s.io/kubernetes/pkg/controlplane/apiserver/config.go BuildGenericConfig
func newStorageFactory(opts options.CompletedOptions, generic *genericapiserver.Config) (*serverstorage.DefaultStorageFactory, error) {
	transport := &opts.Etcd.StorageConfig.Transport
	if generic.EgressSelector != nil {
		transport.EgressLookup = generic.EgressSelector.Lookup
	}
	transport.TracerProvider = generic.TracerProvider
	c := kubeapiserver.NewStorageFactoryConfigEffectiveVersion(generic.EffectiveVersion)
	c.APIResourceConfig = generic.MergedResourceConfig
	c.DefaultResourceEncoding.SetEffectiveVersion(generic.EffectiveVersion)
	storage, err := c.Complete(opts.Etcd).New()
	if err != nil {
		return nil, err
	}
	storage.StorageConfig.StorageObjectCountTracker = generic.StorageObjectCountTracker
	return storage, opts.Etcd.ApplyWithStorageFactoryTo(storage, generic)
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
