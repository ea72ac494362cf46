package supervisor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A role that has just been made may not be known to the authorizer yet.
func TestClaimWaitsForItsRole(t *testing.T) {
	client := fake.NewClientset()
	refusals := 3
	client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, apierrors.NewForbidden(corev1.Resource("secrets"), "a", nil)
	})
	if err := claimWhenAllowed(t.Context(), client, "a", "password"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets(passwordNamespace).Get(t.Context(), "a"+passwordSuffix, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
