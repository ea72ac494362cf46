package impersonation

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

const (
	topologyKey = "local.kedge.dev/node"
	// selectedNode is the annotation of a claim with the node that makes its volume.
	selectedNode = "volume.kubernetes.io/selected-node"
)

// makeVolume makes a claim, and a pod that uses it on a node, and returns the claim's volume.
func makeVolume(c *cluster.Cluster, node string) *corev1.PersistentVolume {
	c.Helper()
	claims := c.Client.CoreV1().PersistentVolumeClaims(cluster.Namespace)
	c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: victim}
spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user-of-victim}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: victim}}]
`, node, image.TestserverName))
	var volume *corev1.PersistentVolume
	c.Eventually("the claim to be bound", func() error {
		claim, err := claims.Get(c.Context(), "victim", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.Spec.VolumeName == "" {
			return errors.New("it has no volume")
		}
		volume, err = c.Client.CoreV1().PersistentVolumes().Get(c.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
		return err
	})
	return volume
}

// forbiddenStorage returns requests about storage that agent-1 may not make. volume is another node's.
func forbiddenStorage(client kubernetes.Interface, volume *corev1.PersistentVolume) map[string]func(context.Context) error {
	volumes := client.CoreV1().PersistentVolumes()
	create := func(change func(*corev1.PersistentVolume)) func(context.Context) error {
		made := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}, Spec: *volume.Spec.DeepCopy()}
		made.Spec.CSI.VolumeHandle = made.Name
		change(made)
		return func(ctx context.Context) error {
			_, err := volumes.Create(ctx, made, metav1.CreateOptions{})
			return err
		}
	}
	here := func(made *corev1.PersistentVolume) {
		made.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"agent-1"}
	}
	return map[string]func(context.Context) error{
		"make a volume on another node": create(func(*corev1.PersistentVolume) {}),
		"make a volume of a folder of its host": create(func(made *corev1.PersistentVolume) {
			here(made)
			made.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		}),
		"make a volume of another driver": create(func(made *corev1.PersistentVolume) {
			here(made)
			made.Spec.CSI.Driver = "other.example"
		}),
		"delete a volume of another node": func(ctx context.Context) error {
			return volumes.Delete(ctx, volume.Name, metav1.DeleteOptions{})
		},
		"let a volume of another node vanish": func(ctx context.Context) error {
			_, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
			return err
		},
		"change a claim of another node": func(ctx context.Context) error {
			claims := client.CoreV1().PersistentVolumeClaims(volume.Spec.ClaimRef.Namespace)
			claim, err := claims.Get(ctx, volume.Spec.ClaimRef.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			claim.Annotations[selectedNode] = "agent-1"
			_, err = claims.Update(ctx, claim, metav1.UpdateOptions{})
			return err
		},
		"tell how much room another node has": func(ctx context.Context) error {
			_, err := client.StorageV1().CSIStorageCapacities("kube-system").Create(ctx, &storagev1.CSIStorageCapacity{
				ObjectMeta:       metav1.ObjectMeta{Name: "stolen"},
				StorageClassName: "local",
				NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{topologyKey: "server-1"}},
			}, metav1.CreateOptions{})
			return err
		},
	}
}
