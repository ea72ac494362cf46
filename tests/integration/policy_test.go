package integration

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TestRBACRefuses checks that a service account may do what its Role says, and no more.
func TestRBACRefuses(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: default, namespace: NAMESPACE}]
`)
	token, err := s.client.CoreV1().ServiceAccounts(s.namespace).CreateToken(s.ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(s.config)
	cfg.Dial, cfg.BearerToken = s.config.Dial, token.Status.Token
	client := kubernetes.NewForConfigOrDie(cfg)

	s.eventually("the Role to allow", func() error {
		_, err := client.CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{})
		return err
	})
	_, secrets := client.CoreV1().Secrets(s.namespace).List(s.ctx, metav1.ListOptions{})
	_, others := client.CoreV1().Pods("kube-system").List(s.ctx, metav1.ListOptions{})
	_, nodes := client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	for _, err := range []error{secrets, others, nodes} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:serviceaccount:"+s.namespace+":default") {
			t.Errorf("got %v, want that it is forbidden to the account", err)
		}
	}
	cfg.BearerToken = token.Status.Token + "x"
	if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Pods(s.namespace).List(s.ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("with a forged token got %v", err)
	}
}

// TestPodSecurityRefuses enforces the profile restricted in a namespace.
func TestPodSecurityRefuses(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.kubectl("label", "namespace", s.namespace, "pod-security.kubernetes.io/enforce=restricted")
	pod := func(name, podContext, context string) string {
		return `
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  restartPolicy: Never
  securityContext: {` + podContext + `}
  containers: [{name: main, image: ` + busybox + `, command: [id, -u], securityContext: {` + context + `}}]
`
	}
	s.refused(pod("plain", "", ""), `violates PodSecurity "restricted:latest"`)
	s.refused(pod("privileged", "", "privileged: true"), "privileged")
	s.apply(pod("good", "runAsNonRoot: true, runAsUser: 65534, seccompProfile: {type: RuntimeDefault}",
		"allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}"))
	s.podUntil("good", "done", succeeded)
	if logs := s.logs("good"); logs != "65534\n" {
		t.Errorf("it ran as %s", logs)
	}
}

// TestResourceQuota checks that objects over a namespace's quota are refused, and that deleted
// objects no longer count.
func TestResourceQuota(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: v1
kind: ResourceQuota
metadata: {name: few}
spec: {hard: {count/secrets: "1"}}
`)
	s.eventually("the quota to be counted", func() error {
		quota, err := s.client.CoreV1().ResourceQuotas(s.namespace).Get(s.ctx, "few", metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = fmt.Errorf("status %+v", quota.Status)
		}
		return err
	})
	secret := func(name string) string {
		return "{apiVersion: v1, kind: Secret, metadata: {name: " + name + "}}"
	}
	s.apply(secret("one"))
	s.refused(secret("two"), "exceeded quota: few")
	s.kubectl("delete", "secret", "one")
	s.eventually("room for another", func() error { return s.tryApply(secret("two")) })
}
