package attacks

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
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
// them could never answer. Certificates, the token and the keys of Secrets are replaced as always. A
// captured node does not gain what the policies would forbid.
func TestFailClosed(t *testing.T) {
	t.Parallel()
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
	startWithoutPods(c, agent)
	replaceKeys(c, agent)
	c.Answers("here", "http://web.default.svc.cluster.local/", "here", "there")
	if output, err := c.TryKubectl("", "create", "configmap", "refused", "--dry-run=server"); err == nil {
		t.Errorf("users' objects are admitted: %s", output)
	}
	triesAsNode(c, on(c, agent.Host))

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

// startWithoutPods starts a server and an agent on hosts whose pods are gone and whose certificates are due.
// It waits until both are Ready, the certificates are new, and the pods run again.
func startWithoutPods(c *cluster.Cluster, agent *harness.Agent) {
	c.Helper()
	c.Log("a start")
	before := c.Containers()
	agent.Terminate()
	c.Server.Terminate()
	hosts := []*harness.Host{c.Server.Host, agent.Host}
	for _, host := range hosts {
		if output, err := host.Kedge(c.Context(), "killall").CombinedOutput(); err != nil {
			c.Fatalf("%v: %s", err, output)
		}
		cluster.Redate(c.T, host, c.Server.Host, time.Now().Add(-355*24*time.Hour), time.Now().Add(10*24*time.Hour))
		if output, err := host.Kedge(c.Context(), "certificate", "check").CombinedOutput(); err == nil {
			c.Fatalf("no certificate of %s is due: %s", host.Name, output)
		}
	}
	c.Server.Start()
	c.Server.WaitReady()
	agent.Start()
	agent.WaitReady()
	for _, host := range hosts {
		c.Eventually("new certificates of "+host.Name, func() error {
			output, err := host.Kedge(c.Context(), "certificate", "check").CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, output)
			}
			return err
		})
	}
	c.Eventually("the pods to be Ready with new containers", func() error {
		pods, err := c.Client.CoreV1().Pods(cluster.Namespace).List(c.Context(), metav1.ListOptions{})
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
}

// replaceKeys replaces the certificates of a server and an agent, the token, and the keys of Secrets.
func replaceKeys(c *cluster.Cluster, agent *harness.Agent) {
	c.Helper()
	c.Log("new certificates, a new token and a new key of Secrets")
	for _, step := range []struct {
		host *harness.Host
		args []string
		says string
	}{
		{c.Server.Host, []string{"certificate", "rotate"}, "serving-kubelet.crt"},
		{agent.Host, []string{"certificate", "rotate"}, "serving-kubelet.crt"},
		{c.Server.Host, []string{"token", "rotate"}, "::"},
		{c.Server.Host, []string{"secrets-encrypt", "rotate"}, "Secrets are encrypted with the key"},
	} {
		output, err := step.host.Kedge(c.Context(), step.args...).CombinedOutput()
		if err != nil || !strings.Contains(string(output), step.says) {
			c.Errorf("%q on %s: %v: %s", step.args, step.host.Name, err, output)
		}
	}
	c.Client = c.Server.Client()
	c.WaitNode("server-1", corev1.ConditionTrue)
	c.WaitNode("agent-1", corev1.ConditionTrue)
}

// triesAsNode lets root on an agent try what the policies of users forbid.
func triesAsNode(c *cluster.Cluster, thief *attacker) {
	c.Helper()
	c.Log("a captured node")
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
			c.Errorf("a captured node may %s: %s", what, output)
		}
	}
	if output, err := thief.kubectl(flannel, "", "patch", "node", "agent-1", "--subresource=status", "--type=merge", "--patch", `{"metadata": {"annotations": {"x": "y"}}}`); err == nil {
		c.Errorf("flannel of a captured node may annotate its Node: %s", output)
	}
}

// webhookPod is the server of a webhook: a pod of a Deployment on the server's node, behind a Service. The arguments
// are its certificate and key, in base64.
const webhookPod = `
apiVersion: v1
kind: Secret
metadata: {name: hook}
type: kubernetes.io/tls
data: {tls.crt: %[1]s, tls.key: %[2]s}
---
apiVersion: v1
kind: Service
metadata: {name: hook}
spec: {selector: {app: hook}, ports: [{port: 443, targetPort: 8443}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: hook}
spec:
  selector: {matchLabels: {app: hook}}
  template:
    metadata: {labels: {app: hook}}
    spec:
      nodeName: server-1
      terminationGracePeriodSeconds: 1
      volumes: [{name: tls, secret: {secretName: hook}}]
      containers:
      - name: main
        image: ` + image.TestserverName + `
        args: [webhook, /tls/tls.crt, /tls/tls.key]
        volumeMounts: [{name: tls, mountPath: /tls}]
        readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
`

// TestFailClosedByPod has a webhook for everything whose backend is a pod on the node of the only server. The
// server and an agent start while the pod is gone, and then the pod answers again.
func TestFailClosedByPod(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1")
	certificate, key := cluster.Certificate(t, "hook.default.svc")
	encode := base64.StdEncoding.EncodeToString
	c.Apply(fmt.Sprintf(webhookPod, encode(certificate), encode(key)))
	c.Kubectl("rollout", "status", "deployment/hook", "--timeout="+cluster.Patience.String())
	c.Apply(cluster.ClosedWebhook("{caBundle: " + encode(certificate) + ", service: {namespace: default, name: hook, path: /validate}}"))
	works := func() {
		t.Helper()
		c.Eventually("the webhook to decide", func() error {
			if output, err := c.TryKubectl("", "create", "configmap", "admitted", "--dry-run=server"); err != nil {
				return fmt.Errorf("%w: %s", err, output)
			}
			_, err := c.TryKubectl("{apiVersion: v1, kind: ConfigMap, metadata: {name: refused, labels: {refuse: \"yes\"}}}", "create", "--dry-run=server", "-f", "-")
			if err == nil || !strings.Contains(err.Error(), "labelled refuse=yes") {
				return fmt.Errorf("it does not refuse: %v", err)
			}
			return nil
		})
	}
	works()
	startWithoutPods(c, agent)
	works()
}
