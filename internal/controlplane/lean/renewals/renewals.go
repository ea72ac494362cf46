// Package renewals answers renewals of Leases without what other updates need. Each
// kubelet renews its Lease every ten seconds, and each holder of an election even more
// often. In a large cluster these are nearly all requests. Upstream's handler prepares
// each of them for everything that an update may be. In particular, it compares all
// fields of both versions of the object to find out which client manages which of them.
//
// A renewal changes nothing but the time of the renewal, so the fields stay with whom
// they are. This package takes only requests that are certainly such renewals, and leaves
// all others to upstream's handler. Authentication, authorization, audit and priority come
// before it. Admission is asked as for every update.
package renewals

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/coordination"
	coordinationv1 "k8s.io/kubernetes/pkg/apis/coordination/v1"
)

// maxBytes limits what is read of a request to find out whether it is a renewal.
const maxBytes = 64 << 10

var (
	resource = coordinationv1.SchemeGroupVersion.WithResource("leases")
	kind     = coordinationv1.SchemeGroupVersion.WithKind("Lease")
)

// errOther says that a request is not a renewal.
var errOther = errors.New("not a renewal")

// Leases is where the API server stores Leases. It has no Storage until the API is
// installed, or if the datastore is not in this process.
type Leases struct {
	Storage storage.Interface
	// Prefix is that of the keys.
	Prefix string
}

// Use makes config's handler answer renewals, after all filters. admit is the admission of
// the server that has the Leases.
func Use(config *genericapiserver.Config, leases *Leases, admit admission.Interface) {
	build := config.BuildHandlerChainFunc
	config.BuildHandlerChainFunc = func(next http.Handler, c *genericapiserver.Config) http.Handler {
		return build(&handler{
			next: next, leases: leases, admit: admission.WithAudit(admit), codecs: legacyscheme.Codecs,
			// These know no other version of Leases, because there is only one.
			objects: admission.NewObjectInterfacesFromScheme(legacyscheme.Scheme),
		}, c)
	}
}

type handler struct {
	next    http.Handler
	leases  *Leases
	admit   admission.Interface
	codecs  runtime.NegotiatedSerializer
	objects admission.ObjectInterfaces
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, known := request.RequestInfoFrom(r.Context())
	if !known || !usual(info, r) {
		h.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBytes))
	again := r.WithContext(r.Context())
	again.Body = &readAgain{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	if err != nil || len(body) == maxBytes {
		h.next.ServeHTTP(w, again)
		return
	}
	renewed, err := h.renew(r, info, body)
	if errors.Is(err, errOther) {
		h.next.ServeHTTP(w, again)
		return
	}
	metrics.InstrumentHandlerFunc(http.MethodPut, resource.Group, resource.Version, resource.Resource, "", "resource", metrics.APIServerComponent, false, "",
		func(w http.ResponseWriter, r *http.Request) {
			if err != nil {
				responsewriters.ErrorNegotiated(err, h.codecs, resource.GroupVersion(), w, r)
				return
			}
			responsewriters.WriteObjectNegotiated(h.codecs, negotiation.DefaultEndpointRestrictions, resource.GroupVersion(), w, r, http.StatusOK, renewed, false)
		})(w, r)
}

// readAgain is a body of which something was read already.
type readAgain struct {
	io.Reader
	io.Closer
}

// usual tells whether a request may be a renewal: it replaces a Lease, and has no option
// except a timeout, which a filter has read.
func usual(info *request.RequestInfo, r *http.Request) bool {
	if !info.IsResourceRequest || info.Verb != "update" || info.Subresource != "" || info.Name == "" || info.Namespace == "" ||
		info.APIGroup != resource.Group || info.APIVersion != resource.Version || info.Resource != resource.Resource {
		return false
	}
	for option := range r.URL.Query() {
		if option != "timeout" {
			return false
		}
	}
	// An answer can also be asked for as a table.
	return !strings.Contains(r.Header.Get("Accept"), "as=")
}

// renew stores a renewal. It returns errOther, and stores nothing, if the request is
// another one.
func (h *handler) renew(r *http.Request, info *request.RequestInfo, body []byte) (runtime.Object, error) {
	if h.leases.Storage == nil {
		return nil, errOther
	}
	lease, err := h.decode(r, body)
	if err != nil {
		return nil, err
	}
	ctx := request.WithNamespace(r.Context(), info.Namespace)
	key, err := registry.NamespaceKeyFunc(ctx, h.leases.Prefix, info.Name)
	if err != nil {
		return nil, errOther
	}
	audit.LogRequestObject(ctx, lease, resource.GroupVersion(), resource, "", h.codecs)
	manager, _, _ := strings.Cut(r.UserAgent(), "/")
	renewed := &coordination.Lease{}
	update := func(existing runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		before, ok := existing.(*coordination.Lease)
		if !ok || !renews(before, lease) || !manages(before.ManagedFields, manager) {
			return nil, nil, errOther
		}
		now := lease.DeepCopy()
		return now, nil, h.ask(ctx, info, before, now)
	}
	if err := h.leases.Storage.GuaranteedUpdate(ctx, key, renewed, false, nil, update, nil); err != nil {
		if storage.IsNotFound(err) || storage.IsConflict(err) {
			return nil, errOther // Upstream's handler tells which it is.
		}
		return nil, storeerr.InterpretUpdateError(err, resource.GroupResource(), info.Name)
	}
	return renewed, nil
}

// decode returns errOther for what upstream's handler would refuse or warn of.
func (h *handler) decode(r *http.Request, body []byte) (*coordination.Lease, error) {
	serializer, err := negotiation.NegotiateInputSerializer(r, false, h.codecs)
	if err != nil {
		return nil, errOther
	}
	wanted := kind
	object, found, err := h.codecs.DecoderToVersion(serializer.StrictSerializer, coordination.SchemeGroupVersion).Decode(body, &wanted, &coordination.Lease{})
	lease, ok := object.(*coordination.Lease)
	if err != nil || !ok || *found != kind {
		return nil, errOther
	}
	return lease, nil
}

// renews tells whether a Lease differs from what it was before only in the time of the
// renewal.
func renews(before, lease *coordination.Lease) bool {
	if lease.Spec.RenewTime == nil || lease.DeletionTimestamp != nil {
		return false
	}
	same := *before
	same.Spec.RenewTime = lease.Spec.RenewTime
	return equality.Semantic.DeepEqual(&same, lease)
}

// manages tells whether the time of the renewal is a field of this manager, and of no other.
// Then the fields stay with their managers when it changes.
func manages(fields []metav1.ManagedFieldsEntry, manager string) bool {
	found := false
	for _, entry := range fields {
		if entry.FieldsV1 == nil || !bytes.Contains(entry.FieldsV1.Raw, []byte(`"f:renewTime"`)) {
			continue
		}
		if found || entry.Manager != manager || entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.APIVersion != resource.GroupVersion().String() || entry.Subresource != "" {
			return false
		}
		found = true
	}
	return found
}

// ask asks admission. Admission may change the Lease. If the changed Lease is not a renewal any
// more, ask returns errOther.
func (h *handler) ask(ctx context.Context, info *request.RequestInfo, before, now *coordination.Lease) error {
	user, _ := request.UserFrom(ctx)
	options := &metav1.UpdateOptions{TypeMeta: metav1.TypeMeta{APIVersion: metav1.SchemeGroupVersion.String(), Kind: "UpdateOptions"}}
	attributes := admission.NewAttributesRecord(now, before, kind, info.Namespace, info.Name, resource, "", admission.Update, options, false, user)
	if mutating, ok := h.admit.(admission.MutationInterface); ok {
		if err := mutating.Admit(ctx, attributes, h.objects); err != nil {
			return err
		}
	}
	if !renews(before, now) {
		return errOther
	}
	if validating, ok := h.admit.(admission.ValidationInterface); ok {
		return validating.Validate(ctx, attributes, h.objects)
	}
	return nil
}
