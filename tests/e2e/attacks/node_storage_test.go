package attacks

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// selectedNode is the annotation of a claim with the node that makes its volume.
const selectedNode = "volume.kubernetes.io/selected-node"

// claimYAML returns a claim for a local volume. annotations is a YAML map.
func claimYAML(namespace, name, annotations string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s, annotations: %s}
spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
`, name, namespace, annotations)
}

// userYAML returns a pod that uses a claim on a node, even if that node does not answer.
func userYAML(claim, node string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[3]q, args: [sleep], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s}}]
`, claim, node, image.TestserverName)
}

// volumeYAML returns a volume on agent-1 as its node makes it: for a claim, with further fields for the
// driver.
func volumeYAML(name, claimRef, driver string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s}
spec:
  storageClassName: local
  accessModes: [ReadWriteOnce]
  capacity: {storage: 64Mi}
  persistentVolumeReclaimPolicy: Delete
  claimRef: {apiVersion: v1, kind: PersistentVolumeClaim, %[2]s}
  csi: {driver: local.kedge.dev, volumeHandle: %[1]s%[3]s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: local.kedge.dev/node, operator: In, values: [agent-1]}]}]}}
`, name, claimRef, driver)
}

// TestNodeVolumes lets root on a node draw another node's claim to its disk, read Secrets by a
// volume, and write more fields of claims and capacities than it may.
func TestNodeVolumes(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	a, storage := on(c, agent.Host), stolen("client-storage")
	c.Kubectl("create", "namespace", "victim")
	c.Kubectl("create", "secret", "generic", "treasure", "--namespace=victim", "--from-literal=key=value")
	apply(c, "victim", claimYAML("victim", "treasure", "{}"))

	// The volumes are for a claim that has chosen no node, or another one. The attacker may know
	// the UID, although a node cannot read other nodes' claims.
	victim := c.Kubectl("get", "pvc", "treasure", "--namespace=victim", "-o=jsonpath={.metadata.uid}")
	create := func(text string) (string, error) {
		return a.kubectl(storage, text, "create", "--validate=false", "-f", "-")
	}
	for what, text := range map[string]string{
		"make a volume for a claim by its name":         volumeYAML("pvc-0", "namespace: victim, name: treasure", ""),
		"make a volume for a claim that chose no node":  volumeYAML("pvc-"+victim, "namespace: victim, name: treasure, uid: "+victim, ""),
		"make a volume under a name of its own":         volumeYAML("mine", "namespace: victim, name: treasure, uid: "+victim, ""),
		"make a volume for a claim that is to come":     volumeYAML("pvc-1", "namespace: victim, name: tomorrow", ""),
		"make a volume that is for whoever takes it":    volumeYAML("pvc-2", "namespace: victim", ""),
		"make a volume for a claim that does not exist": volumeYAML("pvc-3", "namespace: victim, name: tomorrow, uid: '3'", ""),
	} {
		output, err := create(text)
		a.wantForbidden(what, output, err)
	}
	claim, err := c.Client.CoreV1().PersistentVolumeClaims("victim").Get(t.Context(), "treasure", metav1.GetOptions{})
	if err != nil || claim.Spec.VolumeName != "" {
		t.Errorf("the victim's claim has volume %q: %v", claim.Spec.VolumeName, err)
	}

	// The claim has chosen this node, whose kedge is stopped in favour of the attacker.
	agent.Terminate()
	c.Apply(claimYAML(cluster.Namespace, "bait", "{}") + userYAML("bait", "agent-1"))
	var bait *corev1.PersistentVolumeClaim
	c.Eventually("the scheduler to choose agent-1", func() (err error) {
		bait, err = c.Client.CoreV1().PersistentVolumeClaims(cluster.Namespace).Get(t.Context(), "bait", metav1.GetOptions{})
		if err == nil && bait.Annotations[selectedNode] != "agent-1" {
			err = fmt.Errorf("the claim's annotations are %v", bait.Annotations)
		}
		return err
	})
	ref := fmt.Sprintf("namespace: %s, name: bait, uid: %s", bait.Namespace, bait.UID)
	for _, secret := range []string{"nodePublishSecretRef", "nodeStageSecretRef", "controllerPublishSecretRef", "controllerExpandSecretRef", "nodeExpandSecretRef"} {
		output, err := create(volumeYAML("pvc-"+string(bait.UID), ref, fmt.Sprintf(", %s: {namespace: victim, name: treasure}", secret)))
		a.wantForbidden("make a volume with "+secret, output, err)
		if err == nil && secret == "nodePublishSecretRef" {
			c.Eventually("the pod to be bound to agent-1", func() error {
				pod, err := c.Client.CoreV1().Pods(cluster.Namespace).Get(t.Context(), "bait", metav1.GetOptions{})
				if err == nil && pod.Spec.NodeName == "" {
					err = errors.New("it is not")
				}
				return err
			})
		}
	}
	own := volumeYAML("pvc-"+string(bait.UID), ref, "")
	for what, text := range map[string]string{
		"make a volume of another driver":         strings.Replace(own, "local.kedge.dev,", "other.example,", 1),
		"make a volume of a folder of its host":   strings.Replace(own, "csi: {driver: local.kedge.dev, volumeHandle: pvc-"+string(bait.UID)+"}", "hostPath: {path: /}", 1),
		"make a volume of another volume's data":  strings.Replace(own, "volumeHandle: pvc-", "volumeHandle: other-", 1),
		"make a volume on another node":           strings.Replace(own, "[agent-1]", "[server-1]", 1),
		"make a volume that is offered to others": strings.Replace(own, "metadata: {", "metadata: {annotations: {pv.kubernetes.io/bound-by-controller: 'yes'}, ", 1),
		"make a volume that goes with somebody's": strings.Replace(own, "metadata: {", "metadata: {ownerReferences: [{apiVersion: v1, kind: Node, name: server-1, uid: '0'}], ", 1),
	} {
		if text == own {
			t.Fatalf("nothing is changed to %s", what)
		}
		output, err := create(text)
		a.wantForbidden(what, output, err)
	}
	output, err := a.kubectl(stolen("client-kubelet"), "", "get", "secret", "treasure", "--namespace=victim")
	a.wantForbidden("read a Secret of another namespace", output, err)

	for what, patch := range map[string]string{
		"relabel a claim":                    `{"metadata": {"labels": {"app": "attacker"}}}`,
		"annotate a claim":                   `{"metadata": {"annotations": {"attacker.example/is": "here"}}}`,
		"have a claim deleted with an owner": `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "0"}]}}`,
		"take a claim's protection":          `{"metadata": {"finalizers": []}}`,
		"keep a claim from being deleted":    `{"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "attacker.example/stay"]}}`,
		"ask for another volume":             `{"spec": {"volumeName": "pvc-0"}}`,
	} {
		output, err := a.kubectl(storage, "", "patch", "pvc", "bait", "--namespace="+cluster.Namespace, "--type=merge", "--patch="+patch)
		a.wantForbidden(what, output, err)
	}
	push := fmt.Sprintf(`{"metadata": {"annotations": {%q: "server-1"}}}`, selectedNode)
	if _, err := a.kubectl(storage, "", "patch", "pvc", "bait", "--namespace="+cluster.Namespace, "--type=merge", "--patch="+push); err == nil {
		if chosen := c.Kubectl("get", "pvc", "bait", `-o=jsonpath={.metadata.annotations.volume\.kubernetes\.io/selected-node}`); chosen != "agent-1" {
			t.Errorf("a node may have another make its volumes: the claim chose %s", chosen)
		}
	}

	capacity := `{"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "storageClassName": "local", "capacity": "1Gi",
		"nodeTopology": {"matchLabels": {"local.kedge.dev/node": "agent-1"}}, "metadata": {"namespace": "kube-system", %s}}`
	for what, metadata := range map[string]string{
		"hold another Node by a capacity": `"name": "owned", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "server-1", "uid": "0", "blockOwnerDeletion": true}]`,
		"keep a capacity by a finalizer":  `"name": "kept", "finalizers": ["attacker.example/stay"]`,
	} {
		output, err := create(fmt.Sprintf(capacity, metadata))
		a.wantForbidden(what, output, err)
	}

	// The node itself makes the volume, and the pod gets it.
	agent.Start()
	agent.WaitReady()
	c.Pod("bait")
}
