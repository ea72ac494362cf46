package objectcache

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

// UntilKnown asks again at growing intervals between these.
const (
	firstUnknown = 20 * time.Millisecond
	lastUnknown  = 2 * time.Second
)

// UntilKnown calls list until the API server knows the kind that list asks for, or until ctx ends. A server does
// not know a kind at once whose CustomResourceDefinition is new. The reflector of an informer would log each
// attempt as an error.
func UntilKnown(ctx context.Context, list func(context.Context) error) {
	asking := loop.Loop{First: firstUnknown, Last: lastUnknown, Quiet: apierrors.IsNotFound}
	_ = asking.Until(ctx, func(ctx context.Context) error {
		if err := list(ctx); apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}
