package envtest

import (
	"context"
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// reconciler copies Memos to ConfigMaps of the same name.
type reconciler struct{ client.Client }

// Reconcile implements reconcile.Reconciler.
func (r reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var memo Memo
	if err := r.Get(ctx, request.NamespacedName, &memo); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: memo.Name, Namespace: memo.Namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, copied, func() error {
		copied.Data = map[string]string{"text": memo.Spec.Text}
		return controllerutil.SetControllerReference(&memo, copied, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	memo.Status.Copied = true
	return ctrl.Result{}, r.Status().Update(ctx, &memo)
}

// validator refuses Memos that shout.
type validator struct{}

func (validator) ValidateCreate(_ context.Context, memo *Memo) (admission.Warnings, error) {
	if memo.Spec.Text == strings.ToUpper(memo.Spec.Text) {
		return nil, errors.New("do not shout")
	}
	return nil, nil
}

func (v validator) ValidateUpdate(ctx context.Context, _, memo *Memo) (admission.Warnings, error) {
	return v.ValidateCreate(ctx, memo)
}

func (validator) ValidateDelete(context.Context, *Memo) (admission.Warnings, error) { return nil, nil }

// setUp gives a manager the controller and the webhook.
func setUp(manager ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(manager).For(&Memo{}).Owns(&corev1.ConfigMap{}).Complete(reconciler{manager.GetClient()})
	if err != nil {
		return err
	}
	return ctrl.NewWebhookManagedBy(manager, &Memo{}).WithValidator(validator{}).Complete()
}
