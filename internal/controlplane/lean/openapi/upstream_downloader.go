// Follows k8s.io/kube-aggregator v0.37.2, pkg/controllers/openapi/aggregator/downloader.go.

package openapi

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/responsewriter"
)

// download gets the document of the rest from the aggregator. The text is nil if the
// document still has the ETag that is known.
//
//upstream:follows k8s.io/kube-aggregator/pkg/controllers/openapi/aggregator/downloader.go cacheableDownloader.get Downloader.Download Downloader.handlerWithUser
func (m *merged) download(ctx context.Context, known string) (text []byte, etag string, err error) {
	ctx = request.WithUser(context.WithoutCancel(ctx), &user.DefaultInfo{Name: "system:aggregator"})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, v2Path, nil)
	if err != nil {
		return nil, "", fmt.Errorf("get OpenAPI documents to merge: %w", err)
	}
	r.Header.Set("Accept", "application/json")
	if known != "" {
		r.Header.Set("If-None-Match", known)
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
