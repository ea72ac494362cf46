package openapi

import (
	"context"
	"crypto/sha512"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/kube-openapi/pkg/handler"
)

const v2Path = "/openapi/v2"

// merged serves the one OpenAPI v2 document, as upstream's aggregator does
// (kube-aggregator/pkg/controllers/openapi/aggregator). It begins with the
// document of the built-in APIs. The small documents follow that the aggregator
// still merges itself: those of its own types, of CustomResourceDefinitions and of
// aggregated APIs.
//
//upstream:relies-on k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator/aggregator.go BuildAndRegisterAggregator
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

// current returns the merged document. It merges again if the rest has changed.
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
