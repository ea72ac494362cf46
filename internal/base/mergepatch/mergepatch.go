// Package mergepatch changes fields of API objects by JSON merge patches (RFC 7386). Components that own
// single fields of objects call it.
package mergepatch

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Client is a client for objects of one kind, as client-go has them: typed or dynamic.
type Client[T any] interface {
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// Send sets the fields in changes, which is encoded as JSON, at the object with a name. A field that is
// null is removed. If changes has metadata.resourceVersion or metadata.uid, Send fails with a conflict
// for an object that has another one. Errors of the API are returned as they are.
func Send[T any](ctx context.Context, client Client[T], name string, changes any, subresources ...string) error {
	patch, err := json.Marshal(changes)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = client.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	return err
}
