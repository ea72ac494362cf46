// Package openapi serves the API server's OpenAPI documents without keeping them
// in memory. Upstream builds all of them at the start. From then on they are a
// third of its memory, and hardly any client reads them. In this package,
// upstream's builders make the document of a built-in API at the first request,
// and it is kept compressed. Upstream still makes the small documents that
// change: those of CustomResourceDefinitions, of aggregated APIs, and the
// aggregator's own. The apiserver package puts this package into the server's
// chain.
package openapi

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/NYTimes/gziphandler"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/featuregate"
	"k8s.io/kube-openapi/pkg/common"
)

// Documents are the documents of the API server's core and of its server for
// CustomResourceDefinitions. Both servers must be configured to install none
// themselves.
type Documents struct {
	servers []*server

	mu    sync.Mutex
	fixed []byte // the document of all servers for v2, compressed
}

// Install lets the servers serve their documents. All their APIs must be
// installed, and core must delegate to extensions.
func (d *Documents) Install(core, extensions Server, gates featuregate.MutableFeatureGate) error {
	d.servers = []*server{newServer(core), newServer(extensions)}
	groupVersions, err := newGroupVersions(d.servers, origin(core.V3, gates))
	if err != nil {
		return err
	}
	paths := core.Handler.NonGoRestfulMux
	paths.Handle(v3Path, http.HandlerFunc(groupVersions.serveDiscovery))
	paths.HandlePrefix(v3Path+"/", http.HandlerFunc(groupVersions.serveGroupVersion))
	// The aggregator merges this answer, which must not contain the core's
	// document. Without an answer it would log a warning, or get the answer of
	// the server behind.
	paths.HandleFunc(v2Path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", `"core"`)
		fmt.Fprint(w, `{"swagger":"2.0","info":{"title":"","version":""}}`)
	})
	return installCustom(extensions)
}

// Wrap returns the handler of the whole chain, with the v2 documents added.
func (d *Documents) Wrap(chain http.Handler) http.Handler {
	v2 := gziphandler.GzipHandler(&merged{fixed: d.fixedV2, rest: chain})
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
	if d.fixed != nil {
		return d.fixed, nil
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
	d.fixed, err = compress(text)
	return d.fixed, err
}

// Server is one server of the chain.
type Server struct {
	*genericapiserver.GenericAPIServer
	// V2 and V3 are the configurations that the server was built with.
	V2 *common.Config
	V3 *common.OpenAPIV3Config
}
