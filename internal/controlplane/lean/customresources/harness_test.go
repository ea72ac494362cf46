package customresources

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routine"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	source "k8s.io/client-go/tools/cache/testing"

	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// widgets are the objects of the tests.
var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// cluster is a datastore, an informer of definitions, and a server with the handler.
type cluster struct {
	*Handler
	*testing.T
	source    *source.FakeControllerSource
	informer  cache.SharedIndexInformer
	datastore *clientv3.Client
	dynamic.Interface
}

func newTestCluster(t *testing.T) *cluster {
	t.Helper()
	store := sqlite.New(sqlite.Config{Dir: t.TempDir(), Socket: filepath.Join(t.TempDir(), "s")})
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- store.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	c := &cluster{T: t, source: source.NewFakeControllerSource()}
	c.informer = cache.NewSharedIndexInformer(c.source, &apiextensionsv1.CustomResourceDefinition{}, 0, cache.Indexers{})
	var err error
	if c.datastore, err = clientv3.New(clientv3.Config{Endpoints: []string{store.Endpoint().URL}, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.datastore.Close() })

	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/registry", nil))
	etcd.StorageConfig.Transport.ServerList = []string{store.Endpoint().URL}
	etcd.StorageConfig.CountMetricPollPeriod = 0
	if err := Share(c.informer); err != nil {
		t.Fatal(err)
	}
	kept := &detector{RESTOptionsGetter: options.NewCRDRESTOptionsGetter(*etcd, nil, nil), objects: map[*unstructured.Unstructured][]byte{}}
	t.Cleanup(func() { kept.check(t) })
	c.Handler, err = New(Config{
		Rest: http.NotFoundHandler(), Definitions: c, Uncached: generic.UndecoratedStorage, Exists: c.exists,
		Storage:   kept,
		Admission: everything{}, Authorizer: everything{}, ServiceResolver: everything{},
		AuthResolverWrapper: func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r },
		RequestTimeout:      time.Minute, MinRequestTimeout: time.Hour, MaxRequestBodyBytes: 3 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	var running sync.WaitGroup
	running.Go(func() { c.informer.RunWithContext(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	cache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced)

	server := httptest.NewServer(asUser(c.Handler))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	c.Interface = dynamic.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})
	return c
}

// Informer implements informers.CustomResourceDefinitionInformer.
func (c *cluster) Informer() cache.SharedIndexInformer { return c.informer }

// Lister implements informers.CustomResourceDefinitionInformer.
func (c *cluster) Lister() listers.CustomResourceDefinitionLister {
	return listers.NewCustomResourceDefinitionLister(c.informer.GetIndexer())
}

func (c *cluster) exists(ctx context.Context, prefix string) (bool, error) {
	response, err := c.datastore.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	return err == nil && len(response.Kvs) > 0, err
}

// asUser does what the filters of an API server do before the handler.
func asUser(handler http.Handler) http.Handler {
	resolver := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, err := resolver.NewRequestInfo(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx := apirequest.WithUser(apirequest.WithRequestInfo(audit.WithAuditContext(r.Context()), info), &user.DefaultInfo{Name: "somebody"})
		ctx = apirequest.WithReceivedTimestamp(ctx, time.Now())
		if info.Namespace != "" {
			ctx = apirequest.WithNamespace(ctx, info.Namespace)
		}
		// As in the API server, watches go on after their handler has returned.
		routine.WithRoutine(handler, genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())).ServeHTTP(w, r.WithContext(ctx))
	})
}

// everything admits and allows everything.
type everything struct{}

func (everything) Handles(admission.Operation) bool { return false }
func (everything) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}
func (everything) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	return nil, fmt.Errorf("there is no webhook")
}

// widgetDefinition returns a definition with two versions. The field color has a default.
func widgetDefinition(uid types.UID, generation int64, color string) *apiextensionsv1.CustomResourceDefinition {
	names := apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"}
	schema := func() *apiextensionsv1.CustomResourceValidation {
		return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"spec": {
					Type:    "object",
					Default: &apiextensionsv1.JSON{Raw: []byte(`{}`)},
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"` + color + `"`)}},
						"size":  {Type: "integer"},
					},
				},
			},
		}}
	}
	d := definition("widgets", nil)
	d.UID, d.Generation = uid, generation
	d.Spec.Names, d.Spec.Scope = names, apiextensionsv1.NamespaceScoped
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	columns := []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Color", Type: "string", JSONPath: ".spec.color"}}
	d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{
		{Name: "v1", Served: true, Storage: true, Schema: schema(), AdditionalPrinterColumns: columns,
			SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}}},
		{Name: "v2", Served: true, Schema: schema(), Deprecated: true},
	}
	delete(d.Spec.Versions[1].Schema.OpenAPIV3Schema.Properties["spec"].Properties, "size")
	d.Status.AcceptedNames = names
	for _, condition := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		d.Status.Conditions = append(d.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: condition, Status: apiextensionsv1.ConditionTrue})
	}
	return d
}

// define creates or replaces the definition, and waits until the informer has it.
func (c *cluster) define(d *apiextensionsv1.CustomResourceDefinition) {
	c.Helper()
	if _, found, _ := c.informer.GetStore().GetByKey(d.Name); found {
		c.source.Modify(d)
	} else {
		c.source.Add(d)
	}
	c.until("the informer has the definition", func() bool {
		object, found, _ := c.informer.GetStore().GetByKey(d.Name)
		return found && object.(*apiextensionsv1.CustomResourceDefinition).UID == d.UID &&
			object.(*apiextensionsv1.CustomResourceDefinition).Generation == d.Generation
	})
}

// undefine deletes the definition, and waits until the informer has not got it.
func (c *cluster) undefine(name string) {
	c.Helper()
	c.source.Delete(&apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}})
	c.until("the informer has lost the definition", func() bool {
		_, found, _ := c.informer.GetStore().GetByKey(name)
		return !found
	})
}

func (c *cluster) until(what string, done func() bool) {
	c.Helper()
	for !done() {
		select {
		case <-c.Context().Done():
			c.Fatalf("waited in vain: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// known tells whether a backend remembers widgets.
func known(b *backend) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kinds["widgets.example.com"] != nil
}

// watching returns how many informers watch widgets.
func watching(b *backend) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.kinds["widgets.example.com"]; k != nil {
		return len(k.watches)
	}
	return 0
}

// age makes a backend believe that nobody has used its kinds for long, and lets it forget
// them.
func age(b *backend) {
	quiet(b)
	b.sweep()
}

// quiet makes a backend believe that nobody has used its kinds for long.
func quiet(b *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.kinds {
		k.last = k.last.Add(-keepTime)
	}
}

// settle makes a backend believe that it has had its watch caches for long.
func settle(b *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.kinds {
		for _, v := range k.versions {
			if !v.since.IsZero() {
				v.since = v.since.Add(-settleTime)
			}
		}
	}
}

func widget(name string, fields map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": fields,
	}}
}
