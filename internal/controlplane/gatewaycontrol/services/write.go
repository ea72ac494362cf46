package services

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/controlplane/gatewaycontrol/faults"
)

// object is a pointer to an object, or nil.
type object interface {
	faults.Object
	comparable
}

// client is a typed client of a kind in one namespace.
type client[O object] interface {
	Create(context.Context, O, metav1.CreateOptions) (O, error)
	Get(context.Context, string, metav1.GetOptions) (O, error)
	Update(context.Context, O, metav1.UpdateOptions) (O, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
}

// write makes an object if current is nil, and updates it if merge returns another one than it got. merge
// returns a copy of an object that is there with what desired has, or fails if kedge must not touch it.
func write[O object](ctx context.Context, client client[O], kind string, current, desired O, merge func(current, desired O) (O, error)) error {
	var none O
	if current == none {
		made, err := client.Create(ctx, desired, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the cache is behind
			made, err = client.Get(ctx, desired.GetName(), metav1.GetOptions{})
		}
		if err != nil {
			return fmt.Errorf("make %s %s/%s: %w", kind, desired.GetNamespace(), desired.GetName(), err)
		}
		current = made
	}
	now, err := merge(current, desired)
	if err != nil || equality.Semantic.DeepEqual(current, now) {
		return err
	}
	if _, err := client.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("change %s %s/%s: %w", kind, desired.GetNamespace(), desired.GetName(), err)
	}
	return nil
}

// remove deletes an object, unless another one has its name by now.
func remove[O object](ctx context.Context, client client[O], kind string, gone O) error {
	err := client.Delete(ctx, gone.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(gone.GetUID()))})
	if err != nil {
		return fmt.Errorf("delete %s %s/%s: %w", kind, gone.GetNamespace(), gone.GetName(), err)
	}
	return nil
}
