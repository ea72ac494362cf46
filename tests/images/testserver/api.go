package main

import (
	"fmt"
	"net/http"
	"strings"
)

// The aggregated API: the resource echoes of test.kedge.dev/v1, where every
// name can be read and says who asked.
const (
	apiGroup   = "test.kedge.dev"
	apiVersion = apiGroup + "/v1"
)

type object map[string]any

func apiHandler() http.Handler {
	version := object{"groupVersion": apiVersion, "version": "v1"}
	mux := http.NewServeMux()
	mux.HandleFunc("/apis", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, object{"kind": "APIGroupList", "apiVersion": "v1", "groups": []object{
			{"name": apiGroup, "versions": []object{version}, "preferredVersion": version},
		}})
	})
	mux.HandleFunc("/apis/"+apiGroup, func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, object{"kind": "APIGroup", "apiVersion": "v1", "name": apiGroup, "versions": []object{version}, "preferredVersion": version})
	})
	mux.HandleFunc("/apis/"+apiVersion, func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": apiVersion, "resources": []object{
			{"name": "echoes", "singularName": "echo", "namespaced": true, "kind": "Echo", "verbs": []string{"get"}},
		}})
	})
	mux.HandleFunc("/apis/"+apiVersion+"/namespaces/{namespace}/echoes/{name}", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, object{
			"kind": "Echo", "apiVersion": apiVersion,
			"metadata": object{"name": r.PathValue("name"), "namespace": r.PathValue("namespace")},
			"user":     r.Header.Get("X-Remote-User"),
		})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		// Health and OpenAPI: there is none, and the aggregator bears it.
		if strings.HasPrefix(r.URL.Path, "/healthz") {
			fmt.Fprint(w, "ok")
			return
		}
		http.NotFound(w, r)
	})
	return mux
}
