package openapi

import (
	"context"
	"crypto/sha512"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const v2Path = "/openapi/v2"

// merged serves the one document of OpenAPI v2, as upstream's aggregator does
// (kube-aggregator/pkg/controllers/openapi/aggregator): that of the built-in APIs,
// then the small ones that the aggregator still merges itself, of its own types,
// CustomResourceDefinitions and aggregated APIs.
type merged struct {
	// fixed returns the JSON of the built-in APIs, compressed.
	fixed func() ([]byte, error)
	// rest is the aggregator's own handler.
	rest http.Handler

	mu       sync.Mutex
	restETag string
	document *document
}

func (m *merged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protobuf, ok := negotiate(w, r, "v2")
	if !ok {
		return
	}
	document, err := m.current(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	document.serve(w, r, protobuf)
}

// current merges anew if the rest has changed.
func (m *merged) current(ctx context.Context) (*document, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rest, etag, err := m.download(ctx)
	if err != nil || rest == nil {
		return m.document, err
	}
	compressed, err := m.fixed()
	if err != nil {
		return nil, err
	}
	fixed, err := decompress(compressed)
	if err != nil {
		return nil, err
	}
	text, err := mergeDocuments(fixed, rest)
	if err != nil {
		return nil, err
	}
	document, err := newDocument(fmt.Sprintf("%X", sha512.Sum512(text)), text, handler.ToProtoBinary)
	if err != nil {
		return nil, err
	}
	m.document, m.restETag = document, etag
	return document, nil
}

// download returns nothing if the rest is as it was when it was merged.
func (m *merged) download(ctx context.Context) (text []byte, etag string, err error) {
	ctx = request.WithUser(context.WithoutCancel(ctx), &user.DefaultInfo{Name: "system:aggregator"})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v2Path, nil)
	if err != nil {
		return nil, "", fmt.Errorf("get OpenAPI documents to merge: %w", err)
	}
	r.Header.Set("Accept", "application/json")
	if m.document != nil {
		r.Header.Set("If-None-Match", m.restETag)
	}
	response := responsewriter.NewInMemoryResponseWriter()
	m.rest.ServeHTTP(response, r)
	switch response.RespCode() {
	case http.StatusOK:
		return response.Data(), response.Header().Get("Etag"), nil
	case http.StatusNotModified:
		return nil, "", nil
	default:
		return nil, "", fmt.Errorf("get OpenAPI documents to merge: status %d: %s", response.RespCode(), response.Data())
	}
}

// mergeDocuments merges as upstream does, which too has decoded them from JSON:
// what has not been would not always be the same to it.
func mergeDocuments(texts ...[]byte) ([]byte, error) {
	documents := make([]spec.Swagger, len(texts))
	for i, text := range texts {
		if err := documents[i].UnmarshalJSON(text); err != nil {
			return nil, fmt.Errorf("decode OpenAPI document to merge: %w", err)
		}
		if i == 0 {
			continue
		}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&documents[0], &documents[i]); err != nil {
			return nil, fmt.Errorf("merge OpenAPI documents: %w", err)
		}
	}
	text, err := documents[0].MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encode merged OpenAPI document: %w", err)
	}
	return text, nil
}
