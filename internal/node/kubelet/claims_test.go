package kubelet

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// fullDisk cannot write, and remembers one pod that had claims.
type fullDisk struct{ cm.ContainerManager }

var errFull = errors.New("no space left on device")

func (fullDisk) PrepareDynamicResources(context.Context, *corev1.Pod) error   { return errFull }
func (fullDisk) UnprepareDynamicResources(context.Context, *corev1.Pod) error { return errFull }
func (fullDisk) PodMightNeedToUnprepareResources(uid types.UID) bool          { return uid == "known" }

func TestClaimsOnly(t *testing.T) {
	claims := corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}}
	extended := corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{}}
	for name, test := range map[string]struct {
		pod              corev1.Pod
		prepare, release error
	}{
		"none":                  {pod: corev1.Pod{}},
		"claims":                {corev1.Pod{Spec: claims}, errFull, errFull},
		"an extended resource":  {corev1.Pod{Status: extended}, errFull, errFull},
		"claims that are known": {pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "known"}}, release: errFull},
	} {
		manager := claimsOnly{fullDisk{}}
		if err := manager.PrepareDynamicResources(t.Context(), &test.pod); !errors.Is(err, test.prepare) {
			t.Errorf("%s: at the start got %v, want %v", name, err, test.prepare)
		}
		if err := manager.UnprepareDynamicResources(t.Context(), &test.pod); !errors.Is(err, test.release) {
			t.Errorf("%s: at the end got %v, want %v", name, err, test.release)
		}
	}
}
