package cluster

// ClosedWebhook returns a ValidatingWebhookConfiguration called closed for everything that the API is asked to do.
// It fails closed. clientConfig says who answers, as YAML in the flow style.
func ClosedWebhook(clientConfig string) string {
	return `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: closed}
webhooks:
- name: closed.example.com
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: ` + clientConfig + `
  rules:
  - {apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*/*"], scope: "*"}
`
}
