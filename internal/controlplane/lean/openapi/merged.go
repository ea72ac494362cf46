package openapi

import (
	"context"
	"crypto/sha512"
	"fmt"
	"net/http"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/handler"
)

const v2Path = "/openapi/v2"

// merged serves the one OpenAPI v2 document, as upstream's aggregator does
// (kube-aggregator/pkg/controllers/openapi/aggregator). It begins with the
// document of the built-in APIs. Those of custom resources follow, and then the small
// documents that the aggregator still merges itself: those of its own types and of
// aggregated APIs.
//
//upstream:relies-on k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator/aggregator.go BuildAndRegisterAggregator
type merged struct {
	// fixed returns the JSON of the built-in APIs, compressed.
	fixed  func() ([]byte, error)
	custom *custom
	// rest is the aggregator's own handler.
	rest http.Handler

	mu   sync.Mutex
	last kept[made]
}

// made is a merged document, and what it was made from.
type made struct {
	*document
	customHash, restETag string
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

// current returns the merged document. It merges again if a part has changed.
func (m *merged) current(ctx context.Context) (*document, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	custom, err := m.custom.current()
	if err != nil {
		return nil, err
	}
	last, known := m.last.get(), ""
	if last != nil && last.customHash == custom.hash {
		known = last.restETag
	}
	rest, etag, err := m.download(ctx, known)
	if err != nil {
		return nil, err
	}
	if rest == nil && known != "" {
		return last.document, nil
	}
	document, err := m.merge(custom.established, rest)
	if err != nil {
		return nil, err
	}
	m.last.put(&made{document, custom.hash, etag})
	return document, nil
}

func (m *merged) merge(definitions []*apiextensionsv1.CustomResourceDefinition, rest []byte) (*document, error) {
	compressed, err := m.fixed()
	if err != nil {
		return nil, err
	}
	fixed, err := decompress(compressed)
	if err != nil {
		return nil, err
	}
	custom, err := renderCustomV2(definitions)
	if err != nil {
		return nil, err
	}
	text, err := mergeDocuments(fixed, custom, rest)
	if err != nil {
		return nil, err
	}
	return newDocument(fmt.Sprintf("%X", sha512.Sum512(text)), text, handler.ToProtoBinary)
}
