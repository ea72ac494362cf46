package customresources

import (
	"context"
	"io"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// withoutSchemas is the view of the light handler. It returns a definition whose objects
// may have any content, and that has no subresources. All that reading needs of a definition
// is left: names, versions, conversion, columns and selectable fields.
func withoutSchemas(definition *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	light := *definition
	light.Spec.Versions = slices.Clone(definition.Spec.Versions)
	for i := range light.Spec.Versions {
		light.Spec.Versions[i].Subresources = nil
		light.Spec.Versions[i].Schema = &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)},
		}
	}
	return &light
}

// restOptions are the options of a backend's storage.
type restOptions struct {
	generic.RESTOptionsGetter
	backend *backend
	change  func(*backend, generic.RESTOptions) generic.RESTOptions
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o *restOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	options = o.change(o.backend, options)
	decorate := options.Decorator
	options.Decorator = func(
		config *storagebackend.ConfigForResource, prefix string,
		key func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		made, destroy, err := decorate(config, prefix, key, newObject, newList, attributes, triggers, indexers)
		if err == nil {
			destroy = o.backend.keepStore(destroy)
		}
		return made, destroy, err
	}
	return options, nil
}

// store is storage that upstream's handler has made.
type store struct{ destroy factory.DestroyFunc }

// keepStore lets close destroy storage, until somebody else does.
func (b *backend) keepStore(destroy factory.DestroyFunc) factory.DestroyFunc {
	s := &store{destroy: destroy}
	b.storing.Lock()
	defer b.storing.Unlock()
	b.stores[s] = true
	return func() {
		b.storing.Lock()
		delete(b.stores, s)
		b.storing.Unlock()
		s.destroy()
	}
}

// fullOptions makes the full handler's storage, with a watch cache of each version that is used,
// and remembers the storage. A watch cache decodes each change, also those that other servers have
// made.
func fullOptions(uncached generic.StorageDecorator) func(*backend, generic.RESTOptions) generic.RESTOptions {
	uncached = WithBookmarks(uncached)
	return func(full *backend, options generic.RESTOptions) generic.RESTOptions {
		decorate := options.Decorator
		options.Decorator = func(
			config *storagebackend.ConfigForResource, prefix string,
			key func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
			attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			plain, destroy, err := uncached(config, prefix, key, newObject, newList, attributes, triggers, indexers)
			if err != nil {
				return nil, nil, err
			}
			own, name := *config, config.GroupResource.String()
			own.Codec = &notedCodec{Codec: config.Codec, decoded: func() { full.decoded(name) }}
			v := &version{codec: config.Codec}
			v.storage = &lateCache{Interface: plain, destroys: []factory.DestroyFunc{destroy}, decorate: func() (storage.Interface, factory.DestroyFunc, error) {
				cached, destroy, err := decorate(&own, prefix, key, newObject, newList, WithEqualParts(attributes), triggers, indexers)
				if err == nil {
					full.cached(v)
				}
				return cached, destroy, err
			}}
			full.keepVersion(name, versionOf(newObject), v)
			return v.storage, v.storage.destroy, nil
		}
		return options
	}
}

// notedCodec is a codec that tells of each object that it decodes.
type notedCodec struct {
	runtime.Codec
	decoded func()
}

// Decode implements runtime.Decoder.
func (c *notedCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decoded()
	return c.Codec.Decode(data, defaults, into)
}

// lightOptions makes the light handler's storage, without a watch cache and with the codecs
// of the full handler. Nobody counts its objects.
func lightOptions(full *backend, uncached generic.StorageDecorator) func(*backend, generic.RESTOptions) generic.RESTOptions {
	uncached = WithBookmarks(uncached)
	return func(_ *backend, options generic.RESTOptions) generic.RESTOptions {
		options.CountMetricPollPeriod = 0
		options.Decorator = func(
			config *storagebackend.ConfigForResource, prefix string,
			key func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
			attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			own := *config
			own.Codec = &lateCodec{full: full, name: config.GroupResource.String(), version: versionOf(newObject)}
			return uncached(&own, prefix, key, newObject, newList, attributes, triggers, indexers)
		}
		return options
	}
}

// Uncached returns options for storage without a watch cache, of which nobody counts the
// objects. Upstream's own handler of custom resources still has to delete the objects
// of a definition that is deleted. It would make watch caches for that, and fail until
// they are filled.
func Uncached(options generic.RESTOptionsGetter, uncached generic.StorageDecorator) generic.RESTOptionsGetter {
	return uncachedOptions{options, uncached}
}

type uncachedOptions struct {
	generic.RESTOptionsGetter
	uncached generic.StorageDecorator
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o uncachedOptions) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	options.CountMetricPollPeriod, options.Decorator = 0, o.uncached
	return options, err
}

// versionOf returns the version of new objects. Upstream's storage sets it.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/registry/customresource/etcd.go NewStorage
func versionOf(newObject func() runtime.Object) string {
	return newObject().GetObjectKind().GroupVersionKind().Version
}

// lateCodec is a codec that the full handler makes when there is something to decode.
type lateCodec struct {
	full          *backend
	name, version string
}

// Decode implements runtime.Decoder.
func (c *lateCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	codec, err := c.full.codec(c.name, c.version)
	if err != nil {
		return nil, nil, err
	}
	return codec.Decode(data, defaults, into)
}

// Encode implements runtime.Encoder.
func (c *lateCodec) Encode(object runtime.Object, w io.Writer) error {
	codec, err := c.full.codec(c.name, c.version)
	if err != nil {
		return err
	}
	return codec.Encode(object, w)
}

// Identifier implements runtime.Encoder.
func (c *lateCodec) Identifier() runtime.Identifier {
	return runtime.Identifier("late " + c.name + "/" + c.version)
}

// WithBookmarks adds bookmarks to storage that has no watch cache, for the clients that
// want them. Without bookmarks, a client that has seen no change for some minutes would
// have to list everything again, because the datastore has been compacted since. Upstream
// has no such bookmarks, because it has a watch cache for everything that is watched long.
//
//upstream:relies-on k8s.io/apiserver/pkg/storage/etcd3/watcher.go watchChan.startWatching watchChan.transform
func WithBookmarks(decorate generic.StorageDecorator) generic.StorageDecorator {
	return withBookmarks(decorate, 0)
}

// quietTime is how long a watch of definitions goes on after it has sent one.
const quietTime = time.Minute

// ForDefinitions is WithBookmarks for CustomResourceDefinitions. A watch has buffers of
// the server and of the client, which stay as large as the largest object that it has sent.
// Together they are four times a definition, which can be a MiB. So a watch that has sent
// definitions ends after a quiet minute. A client that wants bookmarks begins it again.
func ForDefinitions(decorate generic.StorageDecorator) generic.StorageDecorator {
	return withBookmarks(decorate, quietTime)
}

func withBookmarks(decorate generic.StorageDecorator, quiet time.Duration) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource, prefix string,
		key func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		made, destroy, err := decorate(config, prefix, key, newObject, newList, attributes, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		return bookmarked{made, quiet}, destroy, nil
	}
}

type bookmarked struct {
	storage.Interface
	// quiet is the time after which a watch ends that has sent something, or 0.
	quiet time.Duration
}

// Watch implements storage.Interface.
func (b bookmarked) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	options.ProgressNotify = options.Predicate.AllowWatchBookmarks
	if !options.ProgressNotify {
		w, err := b.Interface.Watch(ctx, key, options)
		if err != nil {
			return nil, err
		}
		// A datastore in this process tells its progress to all watches.
		return watch.Filter(w, func(event watch.Event) (watch.Event, bool) { return event, event.Type != watch.Bookmark }), nil
	}
	if b.quiet == 0 {
		return b.Interface.Watch(ctx, key, options)
	}
	ctx, end := context.WithCancel(ctx)
	w, err := b.Interface.Watch(ctx, key, options)
	if err != nil {
		end()
		return nil, err
	}
	var quiet *time.Timer // since the last object
	return watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		switch {
		case event.Type == watch.Bookmark:
		case quiet == nil:
			quiet = time.AfterFunc(b.quiet, end)
		default:
			quiet.Reset(b.quiet)
		}
		return event, true
	}), nil
}
