package attacks

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// failClosed are a webhook and a policy of each kind that refuse everything: a webhook that
// nobody answers, one whose answer never comes, and policies that cannot be evaluated or say no.
const failClosed = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: closed}
webhooks:
- name: closed.example.com
  failurePolicy: Fail
  sideEffects: None
  timeoutSeconds: 30
  admissionReviewVersions: [v1]
  clientConfig: {service: {namespace: default, name: hook, path: /}}
  rules:
  - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE, DELETE], resources: ["*/*"], scope: "*"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: closed}
webhooks:
- name: closed.example.com
  failurePolicy: Fail
  sideEffects: None
  timeoutSeconds: 30
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://198.51.100.7/"}
  rules:
  - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE, DELETE], resources: ["*/*"], scope: "*"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: closed}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE, DELETE], resources: ["*/*"]}
  validations:
  - expression: "false"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: closed}
spec: {policyName: closed, validationActions: [Deny]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: closed}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: ["*/*"]}
  mutations:
  - patchType: JSONPatch
    jsonPatch: {expression: '[JSONPatch{op: "test", path: "/metadata/none", value: "some"}]'}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: closed}
spec: {policyName: closed}
`

// TestFailClosed: webhooks and policies of users refuse everything, also to kedge. A server and an
// agent whose pods are gone start again and get Ready, and so do the pods, or the webhook in one of
// them could never answer. A captured node does not gain what the policies would forbid.
func TestFailClosed(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	c.RunWeb("here", "server-1")
	c.RunWeb("there", "agent-1")
	c.ServeWeb()
	c.Apply(failClosed)
	c.Eventually("everything to be refused", func() error {
		if output, err := c.TryKubectl("", "create", "configmap", "refused", "--dry-run=server"); err == nil {
			return fmt.Errorf("a ConfigMap is admitted: %s", output)
		}
		return nil
	})
	before := c.Containers()
	agent.Terminate()
	c.Server.Terminate()
	for _, host := range []*harness.Host{agent.Host, c.Server.Host} {
		if output, err := host.Kedge(t.Context(), "killall").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	c.Server.Start()
	c.Server.WaitReady()
	agent.Start()
	agent.WaitReady()
	c.Eventually("the pods to be Ready with new containers", func() error {
		pods, err := c.Client.CoreV1().Pods(cluster.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, status := range pod.Status.ContainerStatuses {
				if id := pod.Name + "/" + status.Name; !status.Ready || strings.HasPrefix(before[id], status.ContainerID) {
					return fmt.Errorf("container %s: ready %t, was %s, is %s", id, status.Ready, before[id], status.ContainerID)
				}
			}
		}
		return nil
	})
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
	if output, err := c.TryKubectl("", "create", "configmap", "refused", "--dry-run=server"); err == nil {
		t.Errorf("users' objects are admitted: %s", output)
	}

	t.Log("a captured node")
	thief := on(c, agent.Host)
	kubelet, flannel := stolen("client-kubelet"), stolen("client-flannel")
	for what, args := range map[string][]string{
		"label its Node":               {"label", "node", "agent-1", "tier=core"},
		"label its Node by the status": {"patch", "node", "agent-1", "--subresource=status", "--type=merge", "--patch", `{"metadata": {"labels": {"tier": "core"}}}`},
		"claim devices":                {"patch", "node", "agent-1", "--subresource=status", "--type=merge", "--patch", `{"status": {"capacity": {"example.com/gpu": "8"}}}`},
		"annotate its pod":             {"patch", "pod", "there", "--namespace", cluster.Namespace, "--subresource=status", "--type=merge", "--patch", `{"metadata": {"annotations": {"x": "y"}}}`},
		"get a token for others":       {"create", "token", "default", "--namespace", cluster.Namespace, "--audience=vault", "--bound-object-kind=Pod", "--bound-object-name=there"},
		"renew another's sign of life": {"patch", "lease", "server-1", "--namespace", "kube-node-lease", "--type=merge", "--patch", `{"spec": {"renewTime": null}}`},
	} {
		if output, err := thief.kubectl(kubelet, "", args...); err == nil {
			t.Errorf("a captured node may %s: %s", what, output)
		}
	}
	if output, err := thief.kubectl(flannel, "", "patch", "node", "agent-1", "--subresource=status", "--type=merge", "--patch", `{"metadata": {"annotations": {"x": "y"}}}`); err == nil {
		t.Errorf("flannel of a captured node may annotate its Node: %s", output)
	}

	t.Log("honest use")
	// A policy is asked about webhooks, and nobody is asked about policies.
	for _, kind := range []string{"validatingadmissionpolicy", "mutatingadmissionpolicy", "mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		c.Eventually("the "+kind+" to go", func() error {
			output, err := c.TryKubectl("", "delete", "--ignore-not-found", kind, "closed")
			if err != nil {
				err = fmt.Errorf("%w: %s", err, output)
			}
			return err
		})
	}
	c.Eventually("a ConfigMap to be admitted", func() error {
		_, err := c.TryKubectl("", "create", "configmap", "admitted")
		return err
	})
}
