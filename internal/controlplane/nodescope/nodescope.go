// Package nodescope limits the services of a node, for example its proxy and its
// storage, to the objects of their own node. RBAC cannot do that: it knows no
// labels, so what it grants one node it grants all. The apiserver package puts
// this package between authorization and the API. The kubelet is not among these
// services: the Node authorizer limits it to its own pods.
package nodescope

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/dynamic"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// Scopes are the kinds of objects that belong to nodes. Each kind has a label whose
// value is the name of the object's node. An empty value means that the object is
// for every node. The services of a node get no objects without the label.
type Scopes map[schema.GroupResource]string

// Use makes config's handler limit the requests of nodes' services, after
// authorization.
func Use(config *genericapiserver.Config, scopes Scopes) error {
	client, err := dynamic.NewForConfig(config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("create client of API server: %w", err)
	}
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		return build(&scope{next: handler, scopes: scopes, client: client, codecs: c.Serializer}, c)
	}
	return nil
}

// scope is the handler between authorization and the API.
type scope struct {
	next   http.Handler
	scopes Scopes
	// client reads objects to find their nodes.
	client dynamic.Interface
	codecs runtime.NegotiatedSerializer
}

// ServeHTTP implements http.Handler.
func (s *scope) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller, known := request.UserFrom(r.Context())
	info, parsed := request.RequestInfoFrom(r.Context())
	if !known || !parsed || !info.IsResourceRequest {
		s.next.ServeHTTP(w, r)
		return
	}
	node := nodeServedBy(caller)
	label, scoped := s.scopes[schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}]
	if node == "" || !scoped {
		s.next.ServeHTTP(w, r)
		return
	}
	var err error
	narrowed := r
	switch info.Verb {
	case "create": // which admission judges
	case "list", "watch", "deletecollection":
		narrowed, err = narrow(r, label, node)
	default:
		err = s.check(r.Context(), info, label, node)
	}
	if err != nil {
		responsewriters.ErrorNegotiated(err, s.codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
		return
	}
	s.next.ServeHTTP(w, narrowed)
}

// nodeServedBy returns the node whose service a user is, or an empty string.
func nodeServedBy(caller user.Info) string {
	if slices.Contains(caller.GetGroups(), pki.NodesGroup) {
		return "" // the node itself
	}
	for _, group := range caller.GetGroups() {
		if node, ok := strings.CutPrefix(group, pki.NodeGroup("")); ok {
			return node
		}
	}
	return ""
}

// narrow returns a list or watch request that additionally asks only for objects of a
// node.
func narrow(r *http.Request, label, node string) (*http.Request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	asked, err := labels.ParseToRequirements(query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	own, err := labels.NewRequirement(label, selection.In, []string{"", node})
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	query.Set("labelSelector", labels.NewSelector().Add(append(asked, *own)...).String())
	narrowed, address := r.WithContext(r.Context()), *r.URL
	address.RawQuery = query.Encode()
	narrowed.URL, narrowed.Form = &address, nil
	return narrowed, nil
}

// check refuses an object of another node. If the object does not exist, the API
// reports that.
func (s *scope) check(ctx context.Context, info *request.RequestInfo, label, node string) error {
	resource := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	var objects dynamic.ResourceInterface = s.client.Resource(resource)
	if info.Namespace != "" {
		objects = s.client.Resource(resource).Namespace(info.Namespace)
	}
	object, err := objects.Get(ctx, info.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if value, ok := object.GetLabels()[label]; !ok || value != "" && value != node {
		return apierrors.NewForbidden(resource.GroupResource(), info.Name, errors.New("it does not belong to node "+node))
	}
	return nil
}
