// Follows k8s.io/kube-openapi v0.0.0-20260821135717-be32def86098, pkg/handler3/handler.go.

package openapi

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// url returns the path of the named document with its hash. Clients may keep what
// they get there for ever.
//
//upstream:follows k8s.io/kube-openapi/pkg/handler3/handler.go constructServerRelativeURL
func (v groupVersion) url(name string) string {
	return (&url.URL{Path: v3Path + "/" + name, RawQuery: url.Values{"hash": {v.hash}}.Encode()}).String()
}

// serveDiscovery answers with the paths of all documents.
//
//upstream:follows k8s.io/kube-openapi/pkg/handler3/handler.go OpenAPIService.HandleDiscovery
func (g *groupVersions) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, v3Path, time.Now(), bytes.NewReader(g.index()))
}

// serveGroupVersion answers with the document of one API group and version.
//
//upstream:follows k8s.io/kube-openapi/pkg/handler3/handler.go OpenAPIService.HandleGroupVersion
func (g *groupVersions) serveGroupVersion(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, v3Path+"/")
	version, found := g.find(name)
	if !found {
		http.NotFound(w, r)
		return
	}
	protobuf, ok := negotiate(w, r, "v3")
	if !ok {
		return
	}
	asked := r.URL.Query().Get("hash")
	if asked != "" && asked != version.hash {
		http.Redirect(w, r, version.url(name), http.StatusMovedPermanently)
		return
	}
	document, err := g.document(name, version)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if asked != "" {
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	document.serve(w, r, protobuf)
}
