// Follows k8s.io/kube-openapi v0.0.0-20260821135717-be32def86098, pkg/handler/handler.go.

package openapi

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/munnerz/goautoneg"
)

// serve answers in the encoding that negotiate has chosen, as upstream's handlers of
// v2 and v3 do.
//
//upstream:follows k8s.io/kube-openapi/pkg/handler/handler.go OpenAPIService.RegisterOpenAPIVersionedService
func (d *document) serve(w http.ResponseWriter, r *http.Request, protobuf bool) {
	body, err := d.bytes(protobuf)
	if err != nil {
		w.Header().Del("Cache-Control")
		w.Header().Del("Expires")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Etag", strconv.Quote(d.etag))
	http.ServeContent(w, r, "", d.modified, bytes.NewReader(body))
}

// negotiate sets the headers for the first encoding that the client accepts, and
// returns whether it is protobuf. If there is none, it answers the request and ok
// is false. The version is OpenAPI's, v2 or v3.
//
//upstream:follows k8s.io/kube-openapi/pkg/handler/handler.go OpenAPIService.RegisterOpenAPIVersionedService
func negotiate(w http.ResponseWriter, r *http.Request, version string) (protobuf, ok bool) {
	w.Header().Add("Vary", "Accept")
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	current := "com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
	deprecated := "com.github.proto-openapi.spec." + version + "@v1.0+protobuf"
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		switch clause.SubType {
		case "json", "*":
			w.Header().Set("Content-Type", "application/json")
			return false, true
		case current, deprecated:
			w.Header().Set("Content-Type", "application/"+current)
			return true, true
		}
	}
	w.WriteHeader(http.StatusNotAcceptable)
	return false, false
}
