package customresources

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/scheme"
	"k8s.io/apimachinery/pkg/runtime"
)

// Lean returns a transport for upstream's controllers of definitions and their informer, with
// which these keep less.
//
// The answers to their writes have no schemas and no managedFields: one of the controllers
// keeps the last answers, up to 100, to know the names in them. Other answers stay as they
// are. So do those about definitions that are being deleted, which a controller writes back.
//
// The informer lists the definitions before it watches them. Its first watch would otherwise
// begin with all of them. Upstream's reflector keeps that watch for ever, also when it has
// ended, and with it a buffer as large as the largest definition.
//
//upstream:relies-on k8s.io/client-go/tools/cache/reflector.go Reflector.ListAndWatchWithContext Reflector.watchList
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/status/naming_controller.go NamingConditionController.sync NamingConditionController.getAcceptedNamesForGroup
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/establish/establishing_controller.go EstablishingController.sync
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema/nonstructuralschema_controller.go ConditionController.sync
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/apiapproval/apiapproval_controller.go KubernetesAPIApprovalPolicyConformantConditionController.sync
//upstream:relies-on k8s.io/apiextensions-apiserver/pkg/controller/finalizer/crd_finalizer.go CRDFinalizer.sync
func Lean(transport http.RoundTripper) http.RoundTripper {
	return leanTransport{transport}
}

type leanTransport struct{ http.RoundTripper }

// errListFirst lets a reflector list the objects before it watches them.
var errListFirst = errors.New("definitions have to be listed before they are watched")

// RoundTrip implements http.RoundTripper.
func (t leanTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/customresourcedefinitions") && r.URL.Query().Has("sendInitialEvents") {
		return nil, errListFirst
	}
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil || r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/status") || response.StatusCode != http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if content, err = dropSchemas(content, response.Header.Get("Content-Type")); err != nil {
		return nil, err
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	response.Header.Del("Content-Length")
	return response, nil
}

// dropSchemas returns an encoded definition without its schemas. It returns anything else
// as it is.
func dropSchemas(content []byte, contentType string) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("read type of answer: %w", err)
	}
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return content, nil
	}
	object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), content)
	if err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	definition, ok := object.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || definition.DeletionTimestamp != nil {
		return content, nil
	}
	definition.ManagedFields = nil
	for i := range definition.Spec.Versions {
		definition.Spec.Versions[i].Schema = nil
	}
	return runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, apiextensionsv1.SchemeGroupVersion), definition)
}
