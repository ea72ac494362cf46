package controlplane

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// useTransformers makes the API server store its own resources by transformers.
// Upstream takes them from a file only (apiserver/pkg/server/options/etcd.go,
// maybeApplyResourceTransformers), which it would read every minute.
func useTransformers(built *app.Config, transformers value.ResourceTransformers) {
	if transformers != nil {
		getter := &built.KubeAPIs.ControlPlane.Generic.RESTOptionsGetter
		*getter = transformedOptions{*getter, transformers}
	}
}

// transformedOptions are upstream's options of each resource, with a transformer,
// as upstream's transformerStorageFactory (in the file above) has them.
type transformedOptions struct {
	generic.RESTOptionsGetter
	transformers value.ResourceTransformers
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (t transformedOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := t.RESTOptionsGetter.GetRESTOptions(resource, example)
	if transformer := t.transformers.TransformerForResource(resource); err == nil && transformer != nil {
		options.StorageConfig.Transformer = transformer
	}
	return options, err
}
