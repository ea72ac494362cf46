package integration

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestCustomResource defines a resource and uses it: its schema must refuse, set defaults and print
// columns.
func TestCustomResource(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	// Definitions are cluster-wide, so the group has the test's name.
	group := s.namespace + ".kedge.dev"
	s.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.` + group + `}
spec:
  group: ` + group + `
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Sails, type: integer, jsonPath: .spec.sails}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              sails: {type: integer, minimum: 1}
              colour: {type: string, default: white}
            x-kubernetes-validations:
            - {rule: "self.sails < 10", message: no boat has that many sails}
`)
	defer s.kubectl("delete", "crd", "boats."+group, "--wait=false")
	boat := func(name, sails string) string {
		return "{apiVersion: " + group + "/v1, kind: Boat, metadata: {name: " + name + "}, spec: {sails: " + sails + "}}"
	}
	s.eventually("the new resource", func() error { return s.tryApply(boat("sloop", "2")) })
	s.refused(boat("raft", "0"), "spec.sails")
	s.refused(boat("fantasy", "10"), "no boat has that many sails")
	if row := s.kubectl("get", "boats."+group, "--no-headers"); strings.Join(strings.Fields(row), " ") != "sloop 2" {
		t.Errorf("kubectl printed %q", row)
	}
	if colour := s.kubectl("get", "boat."+group, "sloop", "-o", "jsonpath={.spec.colour}"); colour != "white" {
		t.Errorf("the default is %q", colour)
	}
}

// tlsServer runs a command of testserver that serves TLS, behind a Service called hook. It returns
// the certificate in base64.
func (s *space) tlsServer(command string) string {
	s.Helper()
	cert, key := cluster.Certificate(s.T, "hook."+s.namespace+".svc")
	encode := base64.StdEncoding.EncodeToString
	s.apply(`
apiVersion: v1
kind: Secret
metadata: {name: hook}
type: kubernetes.io/tls
data: {tls.crt: ` + encode(cert) + `, tls.key: ` + encode(key) + `}
---
apiVersion: v1
kind: Service
metadata: {name: hook}
spec:
  selector: {app: hook}
  ports: [{port: 443, targetPort: 8443}]
---
apiVersion: v1
kind: Pod
metadata: {name: hook, labels: {app: hook}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: tls, secret: {secretName: hook}}]
  containers:
  - name: main
    image: ` + testserver + `
    args: [` + command + `, /tls/tls.crt, /tls/tls.key]
    volumeMounts: [{name: tls, mountPath: /tls}]
    readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
`)
	s.pod("hook")
	return encode(cert)
}

// TestWebhooks lets a pod admit, refuse and change objects of this namespace.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ca := s.tlsServer("webhook")
	for _, kind := range []string{"Validating", "Mutating"} {
		path := map[string]string{"Validating": "/validate", "Mutating": "/mutate"}[kind]
		s.apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ` + kind + `WebhookConfiguration
metadata: {name: NAMESPACE}
webhooks:
- name: hook.kedge.dev
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 5
  clientConfig: {caBundle: ` + ca + `, service: {name: hook, namespace: NAMESPACE, path: ` + path + `}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
`)
		defer s.kubectl("delete", strings.ToLower(kind)+"webhookconfiguration", s.namespace)
	}
	configMap := func(name, refuse string) string {
		return `{apiVersion: v1, kind: ConfigMap, metadata: {name: ` + name + `, labels: {refuse: "` + refuse + `"}}}`
	}
	count := 0
	s.eventually("the mutating webhook to label", func() error {
		count++
		name := fmt.Sprint("good-", count)
		if err := s.tryApply(configMap(name, "no")); err != nil {
			return err
		}
		if label := s.kubectl("get", "configmap", name, "-o", "jsonpath={.metadata.labels.mutated}"); label != "yes" {
			return fmt.Errorf("the label is %q", label)
		}
		return nil
	})
	s.eventually("the validating webhook to refuse", func() error {
		count++
		err := s.tryApply(configMap(fmt.Sprint("bad-", count), "yes"))
		if err == nil || !strings.Contains(err.Error(), "the webhook refuses what is labelled refuse=yes") {
			return fmt.Errorf("the refusal is %v", err)
		}
		return nil
	})
}

// TestValidatingAdmissionPolicy refuses objects by an expression.
func TestValidatingAdmissionPolicy(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAMESPACE}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  validations: [{expression: "!object.metadata.name.startsWith('forbidden')", message: that name is forbidden}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAMESPACE}
spec:
  policyName: NAMESPACE
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
`)
	defer s.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", s.namespace)
	count := 0
	s.eventually("the policy to refuse", func() error {
		count++
		err := s.tryApply(fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: forbidden-%d}}", count))
		if err == nil || !strings.Contains(err.Error(), "that name is forbidden") {
			return fmt.Errorf("the refusal is %v", err)
		}
		return nil
	})
	s.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: allowed}}")
}

// TestAggregatedAPI serves an API from a pod through the aggregation layer, which must tell the pod
// who asks.
func TestAggregatedAPI(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ca := s.tlsServer("api")
	s.apply(`
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.test.kedge.dev}
spec:
  group: test.kedge.dev
  version: v1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: ` + ca + `
  service: {name: hook, namespace: NAMESPACE}
`)
	defer s.kubectl("delete", "apiservice", "v1.test.kedge.dev")
	s.eventually("the aggregated API to be available", func() error {
		conditions := s.kubectl("get", "apiservice", "v1.test.kedge.dev", "-o", `jsonpath={.status.conditions[?(@.type=="Available")]}`)
		if !strings.Contains(conditions, `"status":"True"`) {
			return fmt.Errorf("it is not: %s", conditions)
		}
		return nil
	})
	var echo struct{ Kind, User string }
	text := s.kubectl("get", "echoes.test.kedge.dev", "anything", "-o", "json")
	if err := json.Unmarshal([]byte(text), &echo); err != nil || echo.Kind != "Echo" || !strings.Contains(echo.User, "kedge") {
		t.Errorf("kubectl printed %s, %v", text, err)
	}
}
