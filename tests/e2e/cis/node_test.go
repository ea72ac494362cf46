package cis

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// node returns the checks of chapter 4.
func node() []check {
	return []check{
		{"4.1.1", "permissions of the kubelet's service file", nil, inProcess},
		{"4.1.2", "owner of the kubelet's service file", nil, inProcess},
		{"4.1.3", "permissions of the proxy's kubeconfig", nil, noConfig},
		{"4.1.4", "owner of the proxy's kubeconfig", nil, noConfig},
		{"4.1.5", "permissions of kubelet.conf", nil, noConfig},
		{"4.1.6", "owner of kubelet.conf", nil, noConfig},
		{"4.1.7", "permissions of the authority of clients", modes(0o600, serverTLS+"client-ca.crt", agentTLS+"*"), ""},
		{"4.1.8", "owner of the authority of clients", modes(0o600, serverTLS+"client-ca.crt"), ""},
		{"4.1.9", "permissions of the kubelet's configuration", nil, inProcess},
		{"4.1.10", "owner of the kubelet's configuration", nil, inProcess},

		{"4.2.1", "nobody is anonymous", answers("10250", "/pods", http.StatusUnauthorized), ""},
		{"4.2.2", "not everything is authorized", notByAnybody, ""},
		{"4.2.3", "clients are known by an authority", kubeletHas("authentication.x509.clientCAFile", func(value any) bool { return value != nil && value != "" }), ""},
		{"4.2.4", "no port for reading", notListening("10255"), ""},
		{"4.2.5", "idle streams end", kubeletHas("streamingConnectionIdleTimeout", equals("5m0s")), ""},
		{"4.2.6", "the kubelet makes chains of iptables", nil, fail + ": Services are kedge's nftables, and the kubelet's chains would hold nothing that those lack (internal/node/kubelet/configuration.go)"},
		{"4.2.7", "the name is the host's", nil, absent + ": it is always set, to the name that the node's certificate is for; by default the host's"},
		{"4.2.8", "events are not lost", kubeletHas("eventRecordQPS", func(value any) bool { qps, ok := value.(float64); return ok && qps >= 0 }), ""},
		{"4.2.9", "the kubelet has a certificate", kubeletIsOf(serverTLS + "client-ca.crt"), ""},
		{"4.2.10", "the kubelet renews its client certificate", nil, absent + ": kedge renews it, in its last 90 days"},
		{"4.2.11", "the kubelet renews its certificate", nil, absent + ": kedge renews it, in its last 90 days, and when the node's address changes"},
		{"4.2.12", "the kubelet is encrypted well", encryptedWell("10250"), ""},
		{"4.2.13", "pods have a limit of processes", kubeletHas("podPidsLimit", equals(float64(4096))), ""},
		{"profile", "what the kubelet wants of the kernel is left to the user", kubeletHas("protectKernelDefaults", equals(true)), ""},
	}
}

// kedges is the reason given for checks of roles.
const kedges = "That is so of kedge's own roles; others are yours, and upstream's."

// policies returns the checks of chapter 5.
func policies() []check {
	refused := func(id, text string, change func(*corev1.Pod)) check { return check{id, text, podRefused(change), ""} }
	container := func(change func(*corev1.SecurityContext)) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { change(pod.Spec.Containers[0].SecurityContext) }
	}
	yes, no := true, false
	return []check{
		{"5.1.1", "cluster-admin is used where needed", nil, manual + ": kedge binds it to the group of the administrator's kubeconfig, kedge:cluster-admins"},
		{"5.1.2", "few have access to Secrets", nil, manual + ": of kedge's own, the supervisor and snapshots, in kube-system, by name where that is known (/manifests/rbac.yaml)"},
		{"5.1.3", "few wildcards in roles", noneOfOurs(wildcard), kedges},
		{"5.1.4", "few may create pods", noneOfOurs(allows("pods", "create")), kedges},
		{"5.1.5", "default service accounts are not used", nil, manual + ": automountServiceAccountToken: false in each namespace; they have no rights"},
		{"5.1.6", "tokens are mounted where needed", nil, manual + ": kedge runs no pods"},
		{"5.1.7", "system:masters is not used", noMaster, "Only what applies kedge's own manifests is in it, in process."},
		{"5.1.8", "few may bind, impersonate and escalate", noneOfOurs(escalates), kedges},
		{"5.1.9", "few may create volumes", nil, manual + ": of kedge's own, each node's storage, held to its node by a policy (/manifests/nodes.yaml)"},
		{"5.1.10", "few have access to nodes/proxy", noneOfOurs(allows("nodes/proxy")), kedges},
		{"5.1.11", "few may approve certificates", noneOfOurs(allows("certificatesigningrequests/approval")), kedges},
		{"5.1.12", "few have access to webhooks", noneOfOurs(allows("validatingwebhookconfigurations mutatingwebhookconfigurations")), kedges},
		{"5.1.13", "few may create tokens", noneOfOurs(allows("serviceaccounts/token")), kedges},

		{"5.2.1", "there is a policy for pods", podRefused(func(pod *corev1.Pod) { pod.Spec.Containers[0].SecurityContext = nil }), "Pod Security, restricted; namespaces may say otherwise, by labels."},
		refused("5.2.2", "no privileged containers", container(func(s *corev1.SecurityContext) { s.Privileged = &yes; s.AllowPrivilegeEscalation = &yes })),
		refused("5.2.3", "no host's processes", func(pod *corev1.Pod) { pod.Spec.HostPID = true }),
		refused("5.2.4", "no host's IPC", func(pod *corev1.Pod) { pod.Spec.HostIPC = true }),
		refused("5.2.5", "no host's network", func(pod *corev1.Pod) { pod.Spec.HostNetwork = true }),
		refused("5.2.6", "no escalation", container(func(s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = nil })),
		refused("5.2.7", "no root", container(func(s *corev1.SecurityContext) { s.RunAsNonRoot = &no })),
		refused("5.2.8", "no NET_RAW", container(func(s *corev1.SecurityContext) { s.Capabilities.Drop = []corev1.Capability{"CHOWN"} })),
		refused("5.2.9", "no added capabilities", container(func(s *corev1.SecurityContext) { s.Capabilities.Add = []corev1.Capability{"SYS_TIME"} })),
		refused("5.2.10", "all capabilities are dropped", container(func(s *corev1.SecurityContext) { s.Capabilities = nil })),
		refused("5.2.11", "no HostProcess containers", func(pod *corev1.Pod) {
			pod.Spec.HostNetwork = true // HostProcess containers need the host's network
			pod.Spec.Containers[0].SecurityContext.WindowsOptions = &corev1.WindowsSecurityContextOptions{HostProcess: &yes}
		}),
		refused("5.2.12", "no hostPath", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		}),
		refused("5.2.13", "no ports of the host", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		}),

		{"5.3.1", "the CNI has NetworkPolicies", policiesInForce, "kedge enforces them (internal/node/policy)"},
		{"5.3.2", "each namespace has NetworkPolicies", nil, manual + ": see 5.3.1"},
		{"5.4.1", "Secrets are files rather than variables", nil, manual},
		{"5.4.2", "Secrets are kept elsewhere", nil, manual + ": they are encrypted here (1.2.28)"},
		{"5.5.1", "ImagePolicyWebhook", nil, manual},
		{"5.7.1", "namespaces are used", nil, manual},
		{"5.7.2", "pods have a profile of seccomp", seccompByDefault, "RuntimeDefault for those that say nothing, and restricted refuses Unconfined."},
		{"5.7.3", "pods have security contexts", podAdmitted, "restricted refuses those without: 5.2."},
		{"5.7.4", "the namespace default is not used", nil, manual},
	}
}

// podSpec returns a pod that satisfies the Pod Security Standard restricted.
func podSpec() *corev1.Pod {
	yes, no := true, false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "any.example/image",
			SecurityContext: &corev1.SecurityContext{
				RunAsNonRoot: &yes, AllowPrivilegeEscalation: &no,
				Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		}}},
	}
}

func podAdmitted(b *bench) error {
	_, err := b.Client.CoreV1().Pods(cluster.Namespace).Create(b.Context(), podSpec(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func podRefused(change func(*corev1.Pod)) func(*bench) error {
	return func(b *bench) error {
		pod := podSpec()
		change(pod)
		_, err := b.Client.CoreV1().Pods(cluster.Namespace).Create(b.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return forbidden(err, "violates PodSecurity")
	}
}

// seccompByDefault runs a pod without a seccomp profile, in a namespace that admits it.
func seccompByDefault(b *bench) error {
	b.Kubectl("label", "namespace", cluster.Namespace, "pod-security.kubernetes.io/enforce=privileged")
	defer b.Kubectl("label", "namespace", cluster.Namespace, "pod-security.kubernetes.io/enforce-")
	b.RunWeb("plain", "server-1")
	id, err := b.host.Kedge(b.Context(), "crictl", "ps", "--quiet", "--label", "io.kubernetes.pod.name=plain").Output()
	if err != nil {
		return err
	}
	output, err := b.host.Kedge(b.Context(), "crictl", "inspect", strings.TrimSpace(string(id))).Output()
	if err == nil && !strings.Contains(string(output), `"defaultAction": "SCMP_ACT_ERRNO"`) {
		err = errors.New("it has no profile")
	}
	return err
}

// policiesInForce makes a policy for a pod, and looks for what it makes the kernel do.
func policiesInForce(b *bench) error {
	b.Kubectl("label", "namespace", cluster.Namespace, "pod-security.kubernetes.io/enforce=privileged")
	defer b.Kubectl("label", "namespace", cluster.Namespace, "pod-security.kubernetes.io/enforce-")
	b.RunWeb("isolated", "server-1")
	b.Apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody}
spec: {podSelector: {}}
`)
	defer b.Kubectl("delete", "networkpolicy", "nobody")
	b.Eventually("the policy to be in force", func() error {
		output, err := b.host.Command(b.Context(), "nft", "list", "table", "inet", "kedge-policy").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, output)
		}
		return err
	})
	return nil
}

// notByAnybody asks the kubelet as a user whom it knows and who has no rights.
func notByAnybody(b *bench) error {
	token, err := b.serviceAccount("anybody")
	if err != nil {
		return err
	}
	status, err := b.status(b.at("10250"), "/pods", token)
	if err == nil && status != http.StatusForbidden {
		err = fmt.Errorf("the answer is %d", status)
	}
	return err
}

func notListening(port string) func(*bench) error {
	return func(b *bench) error {
		conn, err := b.host.DialContext(b.Context(), "tcp", b.at(port))
		if err != nil {
			return nil
		}
		conn.Close()
		return errors.New("somebody listens")
	}
}

// administrator returns the token of a service account with all rights.
func (b *bench) administrator(name string) (string, error) {
	token, err := b.serviceAccount(name)
	if err != nil {
		return "", err
	}
	_, err = b.Client.RbacV1().ClusterRoleBindings().Create(b.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: cluster.Namespace, Name: name}},
	}, metav1.CreateOptions{})
	return token, err
}
