package hosts

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kedge-dev/kedge/internal/base/mergepatch"
)

// RecordName is the Secret with the Record. It has nothing that is secret. It is one because
// servers have a cache of Secrets anyway.
var RecordName = types.NamespacedName{Namespace: "kube-system", Name: "kedge-gateway-hosts"}

// RecordOf reads the Secret RecordName, which may be nil.
func RecordOf(secret *corev1.Secret) Record {
	if secret == nil {
		return nil
	}
	return ReadRecord(secret.Data)
}

// WriteRecord records which namespace has which host. secret is the Secret RecordName as it is, or
// nil. It is made if need be. WriteRecord fails with a conflict if the Secret is newer.
func (o *Owners) WriteRecord(ctx context.Context, client typedcorev1.SecretsGetter, secret *corev1.Secret) error {
	if o == nil {
		return nil
	}
	secrets, now := client.Secrets(RecordName.Namespace), o.Record(RecordOf(secret))
	var err error
	if secret == nil && len(now) > 0 {
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: RecordName.Name, Labels: map[string]string{"app.kubernetes.io/managed-by": "kedge"}},
			Data:       Changes(nil, now),
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // the cache brings it soon
		}
	} else if secret != nil {
		if changes := Changes(secret.Data, now); len(changes) > 0 {
			err = mergepatch.Send(ctx, secrets, RecordName.Name, map[string]any{
				"metadata": map[string]any{"resourceVersion": secret.ResourceVersion}, "data": changes,
			})
		}
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", RecordName, err)
	}
	return nil
}
