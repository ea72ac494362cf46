package storage

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// TestLabels wants each node to see its own claims and volumes, and every node to
// see claims that wait for capacity.
func TestLabels(t *testing.T) {
	chosen := func(node string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{localstorage.NodeAnnotation: node}
		}
	}
	labelled := func(value string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{localstorage.TopologyKey: value} }
	}
	foreign := func(v *corev1.PersistentVolume) *corev1.PersistentVolume {
		v.Spec.CSI.Driver = "other.example"
		return v
	}
	ofClaim := func(v *corev1.PersistentVolume) *corev1.PersistentVolume {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "c", UID: "of-claim"}
		return v
	}
	for name, test := range map[string]struct {
		claim       *corev1.PersistentVolumeClaim
		volume      *corev1.PersistentVolume
		claims      string // its label, none for -
		volumeLabel string
	}{
		"no pod yet":             {claim: claim("c", "1Gi"), claims: "-"},
		"a node was chosen":      {claim: claim("c", "1Gi", chosen("a")), claims: "a"},
		"another one was chosen": {claim: claim("c", "1Gi", labelled("b"), chosen("a")), claims: "a"},
		"no room":                {claim: claim("c", "1Ti"), claims: ""},
		"no room any more":       {claim: claim("c", "1Ti", chosen("a")), claims: "a"},
		"room after all":         {claim: claim("c", "1Gi", labelled(""), chosen("a")), claims: "a"},
		"bound":                  {claim: claim("c", "1Gi", bound("1Gi"), labelled("b")), volume: ofClaim(volume("1Gi")), claims: "a", volumeLabel: "a"},
		"bound elsewhere":        {claim: claim("c", "1Gi", bound("1Gi")), volume: foreign(ofClaim(volume("1Gi"))), claims: "-", volumeLabel: "-"},
		"a user's volume":        {claim: claim("c", "1Gi"), volume: volume("1Gi"), claims: "-", volumeLabel: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, nil, class(storagev1.VolumeBindingWaitForFirstConsumer), node("a", corev1.ConditionTrue), node("b", corev1.ConditionTrue),
					capacity("a", "10Gi", ""), test.claim)
				if test.volume != nil {
					if _, err := e.api.CoreV1().PersistentVolumes().Create(t.Context(), test.volume, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
					e.settle()
					got, err := e.api.CoreV1().PersistentVolumes().Get(t.Context(), "v", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if label := labelOf(got.Labels); label != test.volumeLabel {
						t.Errorf("the volume's label is %q, want %q", label, test.volumeLabel)
					}
				}
				if label := labelOf(e.claim("c").Labels); label != test.claims {
					t.Errorf("the claim's label is %q, want %q", label, test.claims)
				}
			})
		})
	}
}

func labelOf(labels map[string]string) string {
	if value, ok := labels[localstorage.TopologyKey]; ok {
		return value
	}
	return "-"
}
