package attacks

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var updateRights = flag.Bool("update-rights", false, "write the list of rights anew")

// users are the names of all client certificates of an agent.
var users = []string{"client-kubelet", "client-kube-proxy", "client-flannel", "client-dns", "client-storage", "client-loadbalancer", "client-gateway"}

// podWithClaim returns a pod on a node, with a Secret in its environment and a volume.
func podWithClaim(name, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, annotations: {note: of-%[1]s}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %[3]s
    args: [sleep]
    env: [{name: PASSWORD, value: hunter2-of-%[1]s}]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s}}]
`, name, node, image.TestserverName)
}

// TestNodeReads lets root on an agent read objects of other nodes, with each of the certificates on the
// agent's disk.
func TestNodeReads(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	c.Apply(podWithClaim("victim", "server-1"))
	c.Apply(podWithClaim("own", "agent-1"))
	c.Pod("victim")
	c.Pod("own") // its volume was made by its node
	volumeOf := func(claim string) string {
		object, err := c.Client.CoreV1().PersistentVolumeClaims(cluster.Namespace).Get(t.Context(), claim, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return object.Spec.VolumeName
	}
	victims, own := volumeOf("victim"), volumeOf("own")
	thief := on(c, agent.Host)

	t.Run("pods", func(t *testing.T) {
		thief := &attacker{t, thief.host, thief.server}
		for _, user := range users {
			for _, ask := range [][]string{
				{"get", "pods", "--all-namespaces", "--output=yaml"},
				{"get", "pod", "victim", "--output=yaml"},
				{"get", "pods", "--field-selector=spec.nodeName=server-1", "--output=yaml"},
				{"get", "--raw=/api/v1/pods?watch=true&timeoutSeconds=2"},
				{"get", "--raw=/api/v1/watch/namespaces/default/pods/victim?timeoutSeconds=2"},
			} {
				output, err := thief.kubectl(stolen(user), "", ask...)
				if strings.Contains(output, "hunter2-of-victim") {
					t.Errorf("%s reads the environment of another node's pod by %v", user, ask)
				}
				thief.wantForbidden("read pods of other nodes as "+user, output, err)
			}
		}
		output, err := thief.kubectl(stolen("client-kubelet"), "", "get", "pods", "--all-namespaces", "--field-selector=spec.nodeName=agent-1", "--output=yaml")
		if err != nil || !strings.Contains(output, "hunter2-of-own") {
			t.Errorf("a node may not read its own pods: %v", err)
		}
	})
	t.Run("claims and volumes", func(t *testing.T) {
		thief := &attacker{t, thief.host, thief.server}
		for _, user := range users {
			for _, path := range []string{
				"/api/v1/persistentvolumeclaims",
				"/api/v1/persistentvolumes",
				"/api/v1/namespaces/default/persistentvolumeclaims?fieldSelector=metadata.name%3Dvictim",
				"/api/v1/persistentvolumeclaims?labelSelector=local.kedge.dev%2Fnode%3Dserver-1",
				"/api/v1/persistentvolumeclaims?labelSelector=x&labelSelector=local.kedge.dev%2Fnode%3Dserver-1",
				"/api/v1/persistentvolumeclaims?limit=1",
				"/api/v1/persistentvolumeclaims?watch=true&timeoutSeconds=2",
				"/api/v1/persistentvolumes?watch=true&timeoutSeconds=2",
				"/api/v1/watch/persistentvolumes?timeoutSeconds=2",
				"/api/v1/watch/persistentvolumes/" + victims + "?timeoutSeconds=2",
				"/api/v1/namespaces/default/persistentvolumeclaims/victim",
				"/api/v1/persistentvolumes/" + victims,
			} {
				_, body := thief.curl(stolen(user), path)
				if strings.Contains(body, "of-victim") || strings.Contains(body, "capacity") && strings.Contains(body, victims) {
					t.Errorf("%s reads %s: %.300s", user, path, body)
				}
			}
			// Each page of a list of all.
			output, err := thief.kubectl(stolen(user), "", "get", "pv,pvc", "--all-namespaces", "--chunk-size=1", "--output=name")
			if strings.Contains(output, victims) || strings.Contains(output, "/victim") {
				t.Errorf("%s reads %s, %v", user, output, err)
			}
		}
	})
	t.Run("by guessing", func(t *testing.T) {
		// A patch whose test fails must look different from one that is forbidden.
		thief := &attacker{t, thief.host, thief.server}
		for _, guess := range []string{"of-victim", "of-nobody"} {
			patch := fmt.Sprintf(`[{"op": "test", "path": "/metadata/annotations/note", "value": %q}]`, guess)
			output, err := thief.kubectl(stolen("client-storage"), "", "patch", "pvc", "victim", "--type=json", "--patch="+patch)
			thief.wantForbidden("guess what a claim of another node has in it", output, err)
		}
	})
	t.Run("by a label", func(t *testing.T) {
		thief := &attacker{t, thief.host, thief.server}
		for _, object := range []string{"pvc/victim", "pv/" + victims} {
			output, err := thief.kubectl(stolen("client-storage"), "", "patch", object, "--type=merge",
				`--patch={"metadata": {"labels": {"local.kedge.dev/node": "agent-1"}}}`)
			thief.wantForbidden("have another node's "+object+" by a label", output, err)
		}
	})
	t.Run("snapshots", func(t *testing.T) {
		thief := &attacker{t, thief.host, thief.server}
		c.Apply(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: victims-content, labels: {snapshot.storage.kubernetes.io/managed-by: server-1}, annotations: {note: of-victim}}
spec:
  deletionPolicy: Retain
  driver: local.kedge.dev
  source: {snapshotHandle: no-such-snapshot}
  volumeSnapshotRef: {name: victim, namespace: default}
`)
		for _, path := range []string{"", "?watch=true&timeoutSeconds=2", "/victims-content", "?labelSelector=snapshot.storage.kubernetes.io%2Fmanaged-by%3Dserver-1"} {
			if _, body := thief.curl(stolen("client-storage"), "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents"+path); strings.Contains(body, "of-victim") {
				t.Errorf("another node's snapshot is read by %q: %.300s", path, body)
			}
		}
	})
	t.Run("the node's own", func(t *testing.T) {
		thief := &attacker{t, thief.host, thief.server}
		for _, user := range []string{"client-kube-proxy"} {
			output, err := thief.kubectl(stolen(user), "", "get", "pv,pvc", "--all-namespaces", "--output=name")
			if err != nil || !strings.Contains(output, own) || !strings.Contains(output, "/own") {
				t.Errorf("%s cannot read the volume and the claim of its own node: %s, %v", user, output, err)
			}
		}
		if output, err := thief.kubectl(stolen("client-storage"), "", "get", "pvc", "own"); err != nil {
			t.Errorf("a node's storage may not read its own claim: %s, %v", output, err)
		}
		// A claim that waits for space waits for all nodes.
		c.Apply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: huge}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 900Ti}}}
`)
		c.Eventually("the claim that waits to be seen", func() error {
			output, err := thief.kubectl(stolen("client-kube-proxy"), "", "get", "pvc", "--output=name")
			if err == nil && !strings.Contains(output, "/huge") {
				err = errors.New("there is " + output)
			}
			return err
		})
		// A volume is deleted with its claim, so its node must see the deletion.
		c.Kubectl("delete", "pod/own", "pvc/own", "--wait=false")
		c.Eventually("the volume to be deleted by its node", func() error {
			output, err := c.TryKubectl("", "get", "pv", own, "--ignore-not-found", "--output=name")
			if err == nil && strings.TrimSpace(output) != "" {
				err = errors.New("it is there")
			}
			return err
		})
	})
	t.Run("rights", func(t *testing.T) {
		thief := &attacker{t, thief.host, thief.server}
		var list strings.Builder
		for _, user := range users {
			for _, namespace := range []string{"default", "kube-system", "kube-node-lease"} {
				fmt.Fprintf(&list, "# %s in %s\n", user, namespace)
				for _, right := range rights(thief, stolen(user), namespace) {
					list.WriteString(right + "\n")
				}
			}
		}
		const file = "testdata/rights.txt"
		if *updateRights {
			if err := os.WriteFile(file, []byte(list.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if list.String() != string(want) {
			t.Errorf("the rights of a node differ from %s. If all nodes need the new rights, run the test with -update-rights. The rights are\n%s", file, list.String())
		}
	})
}

// rights returns what a user may do in a namespace, as RBAC and the Node authorizer report it
// (SelfSubjectRulesReview), in order. It leaves out the rights that all users have.
func rights(a *attacker, who credentials, namespace string) (all []string) {
	a.Helper()
	review := fmt.Sprintf(`{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": %q}}`, namespace)
	output, err := a.kubectl(who, review, "create", "--validate=false", "--filename=-", "--output=json")
	if err != nil {
		a.Fatal(err)
	}
	var answer struct {
		Status struct {
			ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
		}
	}
	if err := json.Unmarshal([]byte(output), &answer); err != nil {
		a.Fatal(err)
	}
	for _, rule := range answer.Status.ResourceRules {
		if slices.Contains(rule.APIGroups, "authorization.k8s.io") || slices.Contains(rule.APIGroups, "authentication.k8s.io") {
			continue
		}
		slices.Sort(rule.Verbs)
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				if len(rule.ResourceNames) > 0 {
					resource += " " + strings.Join(rule.ResourceNames, ",")
				}
				all = append(all, resource+": "+strings.Join(rule.Verbs, " "))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
