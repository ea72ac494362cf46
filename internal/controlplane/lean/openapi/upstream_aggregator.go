// Follows k8s.io/kube-aggregator v0.37.2, pkg/controllers/openapi/aggregator/aggregator.go.

package openapi

import (
	"fmt"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// mergeDocuments merges the JSON of documents into the first. Upstream's aggregator
// decodes them from JSON too: without that, equal definitions may differ.
//
//upstream:follows k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator/aggregator.go specAggregator.buildMergeSpecLocked
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
