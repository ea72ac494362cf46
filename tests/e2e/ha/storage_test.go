package ha

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
)

// binds checks that a claim with immediate binding gets a volume: the storage controller on the elected
// server chooses the node.
func binds(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	_, err := client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: name},
		Provisioner:       "local.kedge.dev",
		VolumeBindingMode: new(storagev1.VolumeBindingImmediate),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims := client.CoreV1().PersistentVolumeClaims("default")
	_, err = claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &name,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, "claim "+name+" to be bound", func() error {
		claim, err := claims.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && claim.Status.Phase != corev1.ClaimBound {
			err = fmt.Errorf("it is %s", claim.Status.Phase)
		}
		return err
	})
}
