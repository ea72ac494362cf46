package lastresort

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// inNamespace are what rules read in the namespace at which they look. Users with the role view read the same, except for kinds of the Gateway API,
// for which Kubernetes has no such role. Events are not here: what an Event says needs no other Event. Secrets are not here, nor is anything of nodes.
var inNamespace = []schema.GroupResource{
	{Resource: "pods"}, {Resource: "services"}, {Resource: "persistentvolumeclaims"},
	{Group: "discovery.k8s.io", Resource: "endpointslices"},
	{Group: "networking.k8s.io", Resource: "ingresses"},
	{Group: gwv1.GroupName, Resource: "gateways"}, {Group: gwv1.GroupName, Resource: "httproutes"}, {Group: gwv1.GroupName, Resource: "grpcroutes"},
	{Group: gwv1.GroupName, Resource: "tlsroutes"}, {Group: gwv1.GroupName, Resource: "tcproutes"}, {Group: gwv1.GroupName, Resource: "udproutes"},
}

// byName are what rules get by the name that an object of the namespace has. No built-in role of a namespace may read classes, and a user who names a
// class finds out whether there is one: an object of that class works. Which other classes there are is not told.
var byName = []schema.GroupResource{
	{Group: "networking.k8s.io", Resource: "ingressclasses"},
	{Group: gwv1.GroupName, Resource: "gatewayclasses"},
}

// resolver reads a request as the API server does.
var resolver = request.RequestInfoFactory{APIPrefixes: sets.String{"api": {}, "apis": {}}, GrouplessAPIPrefixes: sets.String{"api": {}}}

// namespaceKey is the key of the namespace in a context.
type namespaceKey struct{}

// within returns a context for the requests of rules that look at a namespace.
func within(ctx context.Context, namespace string) context.Context {
	return context.WithValue(ctx, namespaceKey{}, namespace)
}

// fence lets only requests pass that a user of the namespace of their context may make. It answers others with 403, so that the rules take what they
// ask for as something that the user may not read.
type fence struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (f fence) RoundTrip(r *http.Request) (*http.Response, error) {
	namespace, _ := r.Context().Value(namespaceKey{}).(string)
	info, err := resolver.NewRequestInfo(r)
	if err != nil || !passes(info, namespace) {
		return &http.Response{StatusCode: http.StatusForbidden, Status: "403 Forbidden", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
	return f.next.RoundTrip(r)
}

// passes tells whether the fence lets a request pass.
func passes(r *request.RequestInfo, namespace string) bool {
	if !r.IsResourceRequest || r.Subresource != "" || r.Verb != "get" && r.Verb != "list" {
		return false
	}
	resource := schema.GroupResource{Group: r.APIGroup, Resource: r.Resource}
	own := namespace != "" && r.Namespace == namespace && slices.Contains(inNamespace, resource)
	return own || r.Verb == "get" && slices.Contains(byName, resource)
}

// fencedClients returns the clients of the rules.
func fencedClients(client *rest.Config) (why.Clients, error) {
	client = rest.CopyConfig(client)
	client.Wrap(func(next http.RoundTripper) http.RoundTripper { return fence{next} })
	api, err := kubernetes.NewForConfig(client)
	if err != nil {
		return why.Clients{}, fmt.Errorf("make client: %w", err)
	}
	custom, err := dynamic.NewForConfig(client)
	if err != nil {
		return why.Clients{}, fmt.Errorf("make client of custom resources: %w", err)
	}
	return why.Clients{Kubernetes: api, Dynamic: custom, Now: time.Now}, nil
}
