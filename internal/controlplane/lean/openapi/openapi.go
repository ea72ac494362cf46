// Package openapi serves the API server's OpenAPI documents without keeping them
// in memory. Upstream builds all of them at the start, and those of a
// CustomResourceDefinition when it changes. From then on they are a third of its
// memory, and hardly any client reads them. In this package, upstream's builders
// make a document at the first request. It is kept compressed until some minutes
// after the last request. Upstream still makes two kinds of documents: those of
// aggregated APIs, and the aggregator's own. The apiserver package puts this package
// into the server's chain.
package openapi

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/NYTimes/gziphandler"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/featuregate"
	"k8s.io/kube-openapi/pkg/common"
)

// Documents are the documents of the API server's core, of its server for
// CustomResourceDefinitions, and of custom resources. Both servers must be configured
// to install none themselves.
type Documents struct {
	servers []*server
	custom  custom

	mu    sync.Mutex
	fixed kept[[]byte] // the document of all servers for v2, compressed
}

// Install lets the servers serve their documents. All their APIs must be
// installed, and core must delegate to extensions. The informer is that of
// extensions, which must not have been started.
//
// The server for CustomResourceDefinitions gets none of the services that upstream's
// controllers of OpenAPI would fill. Without the services, the controllers do not
// start.
//
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go completedConfig.New
func (d *Documents) Install(core, extensions Server, informer informers.CustomResourceDefinitionInformer, gates featuregate.MutableFeatureGate) error {
	d.servers = []*server{newServer(core), newServer(extensions)}
	origin := origin(core.V3, gates)
	if err := d.custom.watch(informer, origin); err != nil {
		return err
	}
	fixed := &groupVersions{}
	if err := fixed.set(builtIn(d.servers, origin)); err != nil {
		return err
	}
	paths := core.Handler.NonGoRestfulMux
	paths.Handle(v3Path, http.HandlerFunc(fixed.serveDiscovery))
	paths.HandlePrefix(v3Path+"/", http.HandlerFunc(fixed.serveGroupVersion))
	paths.HandleFunc(v2Path, serveNothing)
	paths = extensions.Handler.NonGoRestfulMux
	paths.Handle(v3Path, d.custom.first(d.custom.versions.serveDiscovery))
	paths.HandlePrefix(v3Path+"/", d.custom.first(d.custom.versions.serveGroupVersion))
	paths.HandleFunc(v2Path, serveNothing)
	return nil
}

// serveNothing answers with a v2 document that has nothing. The aggregator merges
// the answers of both servers, and must not keep their documents. Without an answer
// it would log a warning, or get the answer of the server behind.
func serveNothing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Etag", `"nothing"`)
	fmt.Fprint(w, `{"swagger":"2.0","info":{"title":"","version":""}}`)
}

// Wrap returns the handler of the whole chain, with the v2 documents added. It serves
// only after Install.
func (d *Documents) Wrap(chain http.Handler) http.Handler {
	v2 := gziphandler.GzipHandler(&merged{fixed: d.fixedV2, custom: &d.custom, rest: chain})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == v2Path {
			v2.ServeHTTP(w, r)
			return
		}
		if r.URL.Path == v3Path {
			// Upstream sets no Content-Type. http.ServeContent would then read the
			// host's list of all types and keep it.
			w.Header().Set("Content-Type", "application/json")
		}
		chain.ServeHTTP(w, r)
	})
}

// fixedV2 returns the JSON of the documents that never change, compressed.
func (d *Documents) fixedV2() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if fixed := d.fixed.get(); fixed != nil {
		return *fixed, nil
	}
	texts := make([][]byte, len(d.servers))
	for i, server := range d.servers {
		var err error
		if texts[i], err = server.renderV2(); err != nil {
			return nil, err
		}
	}
	text, err := mergeDocuments(texts...)
	if err != nil {
		return nil, err
	}
	fixed, err := compress(text)
	if err != nil {
		return nil, err
	}
	d.fixed.put(&fixed)
	return fixed, nil
}

// Server is one server of the chain.
type Server struct {
	*genericapiserver.GenericAPIServer
	// V2 and V3 are the configurations that the server was built with.
	V2 *common.Config
	V3 *common.OpenAPIV3Config
}
