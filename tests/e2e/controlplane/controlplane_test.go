// Package controlplane tests a server without a node (--disable-agent). The webhook and the
// aggregated API that it calls are pods of an agent behind NAT.
package controlplane

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestServerWithoutNode(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	server := cluster.NewHost(t, network, "server-1").StartServer(t, "--disable-agent")
	server.WaitAPI()
	c := cluster.Of(t, server)
	agent := c.Join(network.BehindNAT(t), "agent-1")

	t.Run("no node", func(t *testing.T) {
		nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != "agent-1" {
			t.Errorf("the nodes are %v, %v", nodes, err)
		}
	})
	t.Run("exec", func(t *testing.T) {
		c := on(c, t)
		c.RunWeb("web", "agent-1")
		c.Answers("web", "http://localhost:"+cluster.WebPort+"/", "web")
	})
	webhook, api := serveTLS(c, "webhook"), serveTLS(c, "api")
	c.Apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: webhook.kedge.dev}
webhooks:
- name: webhook.kedge.dev
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 10
  clientConfig: {caBundle: ` + webhook + `, service: {name: webhook, namespace: default, path: /mutate}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.test.kedge.dev}
spec:
  group: test.kedge.dev
  version: v1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: ` + api + `
  service: {name: api, namespace: default}
`)
	works := func(t *testing.T) {
		c := on(c, t)
		t.Run("webhook", func(t *testing.T) { callWebhook(on(c, t)) })
		t.Run("aggregated API", func(t *testing.T) { callAPI(on(c, t)) })
	}
	t.Run("at first", works)
	agent.Kill9()
	agent.Start()
	agent.WaitReady()
	t.Run("after the agent was killed", works)
	server.Kill9()
	server.Start()
	server.WaitAPI()
	t.Run("after the server was killed", works)
}

// on returns the cluster for a subtest.
func on(c *cluster.Cluster, t *testing.T) *cluster.Cluster {
	sub := *c
	sub.T = t
	return &sub
}

// serveTLS runs a command of testserver that serves TLS, behind a Service with the command's name. It
// returns the server's certificate in base64.
func serveTLS(c *cluster.Cluster, command string) string {
	c.Helper()
	cert, key := cluster.Certificate(c.T, command+".default.svc")
	encode := base64.StdEncoding.EncodeToString
	c.Apply(`
apiVersion: v1
kind: Secret
metadata: {name: ` + command + `}
type: kubernetes.io/tls
data: {tls.crt: ` + encode(cert) + `, tls.key: ` + encode(key) + `}
---
apiVersion: v1
kind: Service
metadata: {name: ` + command + `}
spec:
  selector: {app: ` + command + `}
  ports: [{port: 443, targetPort: 8443}]
---
apiVersion: v1
kind: Pod
metadata: {name: ` + command + `, labels: {app: ` + command + `}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: tls, secret: {secretName: ` + command + `}}]
  containers:
  - name: main
    image: ` + image.TestserverName + `
    args: [` + command + `, /tls/tls.crt, /tls/tls.key]
    volumeMounts: [{name: tls, mountPath: /tls}]
    readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
`)
	c.Pod(command)
	return encode(cert)
}

// callWebhook creates objects until the webhook has labelled one.
func callWebhook(c *cluster.Cluster) {
	c.Eventually("the webhook to label", func() error {
		name, err := c.TryKubectl(`{apiVersion: v1, kind: ConfigMap, metadata: {generateName: test-}}`, "create", "-f", "-", "-o", "jsonpath={.metadata.name}")
		if err != nil {
			return err
		}
		label, err := c.TryKubectl("", "get", "configmap", name, "-o", "jsonpath={.metadata.labels.mutated}")
		if err == nil && label != "yes" {
			err = fmt.Errorf("the label is %q", label)
		}
		return err
	})
}

// callAPI reads an object of the aggregated API. The object tells who asked.
func callAPI(c *cluster.Cluster) {
	c.Eventually("the aggregated API to answer", func() error {
		text, err := c.TryKubectl("", "get", "--raw", "/apis/test.kedge.dev/v1/namespaces/default/echoes/anything")
		if err != nil {
			return err
		}
		var echo struct{ Kind, User string }
		if err := json.Unmarshal([]byte(text), &echo); err != nil || echo.Kind != "Echo" || !strings.Contains(echo.User, "kedge") {
			return fmt.Errorf("it answers %s, %v", text, err)
		}
		return nil
	})
}
