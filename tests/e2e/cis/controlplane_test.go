package cis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const (
	serverTLS = "/var/lib/kedge/server/tls/"
	agentTLS  = "/var/lib/kedge/agent/tls/"
	auditLog  = "/var/lib/kedge/server/logs/audit.log"

	inProcess = absent + ": it is a part of kedge's process, and has no such file"
	noConfig  = absent + ": it calls the API in process, and has no kubeconfig"
)

// controlPlane returns the checks of chapters 1 to 3.
func controlPlane() []check {
	return []check{
		{"1.1.1", "permissions of the API server's pod specification", nil, inProcess},
		{"1.1.2", "owner of the API server's pod specification", nil, inProcess},
		{"1.1.3", "permissions of the controller manager's pod specification", nil, inProcess},
		{"1.1.4", "owner of the controller manager's pod specification", nil, inProcess},
		{"1.1.5", "permissions of the scheduler's pod specification", nil, inProcess},
		{"1.1.6", "owner of the scheduler's pod specification", nil, inProcess},
		{"1.1.7", "permissions of etcd's pod specification", nil, inProcess},
		{"1.1.8", "owner of etcd's pod specification", nil, inProcess},
		{"1.1.9", "permissions of CNI's files", modes(0o600, "/var/lib/kedge/agent/etc/cni/net.d/*"), ""},
		{"1.1.10", "owner of CNI's files", modes(0o600, "/var/lib/kedge/agent/etc/cni/net.d/*"), ""},
		{"1.1.11", "permissions of etcd's data", modes(0o700, "/var/lib/kedge/server/db/etcd"), ""},
		{"1.1.12", "etcd's data are etcd's", nil, fail + ": etcd is a part of kedge's process, which is root's; so are its data, as with k3s"},
		{"1.1.13", "permissions of admin.conf", modes(0o600, "/etc/kedge/kedge.yaml"), ""},
		{"1.1.14", "owner of admin.conf", modes(0o600, "/etc/kedge/kedge.yaml"), ""},
		{"1.1.15", "permissions of scheduler.conf", nil, noConfig},
		{"1.1.16", "owner of scheduler.conf", nil, noConfig},
		{"1.1.17", "permissions of controller-manager.conf", nil, noConfig},
		{"1.1.18", "owner of controller-manager.conf", nil, noConfig},
		{"1.1.19", "owner of the folder of certificates", modes(0o700, "/var/lib/kedge/server/tls", "/var/lib/kedge/server/tls/etcd"), ""},
		{"1.1.20", "permissions of certificates", modes(0o600, serverTLS+"*.crt", serverTLS+"etcd/*.crt"), ""},
		{"1.1.21", "permissions of keys", modes(0o600, serverTLS+"*.key", serverTLS+"etcd/*.key"), ""},

		{"1.2.1", "nobody is anonymous", answers("6443", "/api", http.StatusUnauthorized), "Only /livez, /readyz, /healthz and /cacerts answer."},
		{"1.2.2", "no file with tokens", nil, absent + ": kedge sets no token-auth-file; only a user's kube-apiserver-arg could"},
		{"1.2.3", "DenyServiceExternalIPs", admits("DenyServiceExternalIPs", false), "As with k3s; enable-admission-plugins=DenyServiceExternalIPs sets it."},
		{"1.2.4", "the API server shows kubelets a certificate", answers("10250", "/configz", http.StatusUnauthorized), "Its question for the kubelet's configuration was answered, which is not without one."},
		{"1.2.5", "the API server knows kubelets by their authority", kubeletIsOf(serverTLS + "client-ca.crt"), ""},
		{"1.2.6", "not everything is authorized", notEverything, ""},
		{"1.2.7", "authorization by Node", byNode, ""},
		{"1.2.8", "authorization by RBAC", byRBAC, ""},
		{"1.2.9", "EventRateLimit", admits("EventRateLimit", true), ""},
		{"1.2.10", "no AlwaysAdmit", admits("AlwaysAdmit", false), ""},
		{"1.2.11", "AlwaysPullImages", nil, manual + ": as the benchmark says, not for clusters whose images are preloaded; enable-admission-plugins=AlwaysPullImages sets it"},
		{"1.2.12", "SecurityContextDeny", nil, absent + ": Kubernetes does not have it any more; Pod Security is 5.2"},
		{"1.2.13", "ServiceAccount", admits("ServiceAccount", true), ""},
		{"1.2.14", "NamespaceLifecycle", admits("NamespaceLifecycle", true), ""},
		{"1.2.15", "NodeRestriction", admits("NodeRestriction", true), ""},
		{"1.2.16", "the API server is not profiled", notProfiled("6443"), ""},
		{"1.2.17", "there is an audit log", modes(0o600, auditLog), ""},
		{"1.2.18", "the audit log is kept for 30 days", nil, manual + ": it is, or for fewer where 10 files of 100 MB are full before (internal/controlplane/apiserver/hardening.go; audit-log-maxage)"},
		{"1.2.19", "of the audit log 10 files are kept", nil, manual + ": so it is (audit-log-maxbackup)"},
		{"1.2.20", "each with 100 MB", nil, manual + ": so it is (audit-log-maxsize)"},
		{"1.2.21", "the time of a request has a limit", nil, manual + ": upstream's, a minute (request-timeout)"},
		{"1.2.22", "service accounts are looked up", lookedUp, ""},
		{"1.2.23", "tokens of service accounts are signed", modes(0o600, serverTLS+"service.key"), ""},
		{"1.2.24", "certificates for etcd", wantsCertificate("2380"), "The API server itself calls etcd in process; all others need one."},
		{"1.2.25", "the API has a certificate", hasCertificate, ""},
		{"1.2.26", "clients are known by an authority", modes(0o600, serverTLS+"client-ca.crt"), ""},
		{"1.2.27", "etcd is known by its authority", modes(0o600, serverTLS+"etcd/server-ca.crt"), ""},
		{"1.2.28", "Secrets are encrypted", encrypted, "Not by an encryption-provider-config: the keys are never in a file."},
		{"1.2.29", "Secrets are encrypted well", encrypted, "By upstream's secretbox."},
		{"1.2.30", "the API is encrypted well", encryptedWell("6443"), ""},

		{"1.3.1", "ended pods are collected", nil, manual + ": the profile sets terminated-pod-gc-threshold to 100"},
		{"1.3.2", "the controller manager is not profiled", notProfiled("10257"), ""},
		{"1.3.3", "each controller is a service account", audit(`"username":"system:serviceaccount:kube-system:`), ""},
		{"1.3.4", "tokens are signed by a key", modes(0o600, serverTLS+"service.key"), ""},
		{"1.3.5", "pods know the cluster's authority", rootCA, ""},
		{"1.3.6", "RotateKubeletServerCertificate", nil, absent + ": kedge itself renews the kubelet's certificate, and has no such requests signed"},
		{"1.3.7", "the controller manager is for this host only", onLoopback("10257"), ""},
		{"1.4.1", "the scheduler is not profiled", notProfiled("10259"), ""},
		{"1.4.2", "the scheduler is for this host only", onLoopback("10259"), ""},

		{"2.1", "etcd has a certificate", modes(0o600, serverTLS+"etcd/server-client.key", serverTLS+"etcd/server-client.crt"), ""},
		{"2.2", "etcd's clients show one", etcdClients, ""},
		{"2.3", "etcd signs none itself", nil, absent + ": kedge sets no auto-tls, and nobody can"},
		{"2.4", "etcd's members have certificates", modes(0o600, serverTLS+"etcd/peer-server-client.key", serverTLS+"etcd/peer-server-client.crt"), ""},
		{"2.5", "etcd's members show them", wantsCertificate("2380"), ""},
		{"2.6", "etcd's members sign none themselves", nil, absent + ": kedge sets no peer-auto-tls, and nobody can"},
		{"2.7", "etcd has an authority of its own", ownAuthority, ""},

		{"3.1.1", "users have no client certificates", nil, manual + ": the administrator's kubeconfig is one, whose group can be unbound; users may come by OIDC (oidc-issuer-url)"},
		{"3.1.2", "users have no tokens of service accounts", nil, manual},
		{"3.1.3", "users have no bootstrap tokens", nil, manual + ": `kedge token create` is for nodes; each ends after a day"},
		{"3.2.1", "there is an audit policy", modes(0o600, "/var/lib/kedge/server/etc/audit-policy.yaml"), ""},
		{"3.2.2", "it has what matters, and no secrets", auditCovers, ""},
	}
}

func notEverything(b *bench) error {
	_, err := b.as("nobody").CoreV1().Secrets("").List(b.Context(), metav1.ListOptions{})
	return forbidden(err, `User "nobody" cannot list`)
}

func byNode(b *bench) error {
	_, err := b.as("system:node:server-1", "system:nodes", "system:authenticated").CoreV1().Secrets("kube-system").Get(b.Context(), "any", metav1.GetOptions{})
	return forbidden(err, "no relationship found between node")
}

func byRBAC(b *bench) error {
	_, err := b.as("system:serviceaccount:kube-system:generic-garbage-collector", "system:serviceaccounts", "system:authenticated").
		CoreV1().ConfigMaps("default").List(b.Context(), metav1.ListOptions{})
	return err
}

// notProfiled asks as the administrator, who may see everything.
func notProfiled(port string) func(*bench) error {
	return func(b *bench) error {
		host := b.host.Address.String()
		if port != "6443" {
			host = "127.0.0.1"
		}
		token, err := b.administrator("profiler-" + port)
		if err != nil {
			return err
		}
		status, err := b.status(host+":"+port, "/debug/pprof/", token)
		if err == nil && status != http.StatusNotFound {
			err = fmt.Errorf("the answer is %d", status)
		}
		return err
	}
}

// lookedUp uses the token of a deleted service account.
func lookedUp(b *bench) error {
	token, err := b.serviceAccount("deleted")
	if err != nil {
		return err
	}
	if status, err := b.status(b.at("6443"), "/api", token); err != nil || status != http.StatusOK {
		return fmt.Errorf("with a token the answer is %d, %w", status, err)
	}
	if err := b.Client.CoreV1().ServiceAccounts(cluster.Namespace).Delete(b.Context(), "deleted", metav1.DeleteOptions{}); err != nil {
		return err
	}
	b.Eventually("the token of a service account that is gone to be refused", func() error {
		status, err := b.status(b.at("6443"), "/api", token)
		if err == nil && status != http.StatusUnauthorized {
			err = fmt.Errorf("the answer is %d", status)
		}
		return err
	})
	return nil
}

func hasCertificate(b *bench) error { return b.verify("6443", serverTLS+"server-ca.crt", "kubernetes") }

// kubeletIsOf checks that the authority in a file has signed the kubelet's certificate.
func kubeletIsOf(file string) func(*bench) error {
	return func(b *bench) error { return b.verify("10250", file, "server-1") }
}

// verify checks that the authority in a file has signed a port's certificate for a name.
func (b *bench) verify(port, file, name string) error {
	roots, err := b.certificates(file)
	if err != nil {
		return err
	}
	conn, err := b.host.DialContext(b.Context(), "tcp", b.at(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: name}).HandshakeContext(b.Context())
}

func encrypted(b *bench) error {
	ctx, cancel := context.WithTimeout(b.Context(), cluster.Patience)
	defer cancel()
	output, err := b.host.Kedge(ctx, "secrets-encrypt", "status").CombinedOutput()
	if err == nil && (!strings.Contains(string(output), "on\n") || strings.Contains(string(output), "Not encrypted")) {
		err = errors.New(string(output))
	}
	return err
}

func rootCA(b *bench) error {
	published, err := b.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(b.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		return err
	}
	file, err := os.ReadFile(b.host.Path(serverTLS + "kube-root-ca.crt"))
	if err == nil && strings.TrimSpace(published.Data["ca.crt"]) != strings.TrimSpace(string(file)) {
		err = errors.New("it is another certificate")
	}
	return err
}

// etcdClients connects to etcd's port for clients on this host.
func etcdClients(b *bench) error {
	return b.refuses("127.0.0.1:2379", "certificate required", &tls.Config{})
}

func ownAuthority(b *bench) error {
	seen := map[string]string{}
	for _, name := range []string{"server-ca.crt", "client-ca.crt", "request-header-ca.crt", "etcd/server-ca.crt", "etcd/peer-ca.crt"} {
		text, err := os.ReadFile(b.host.Path(serverTLS + name))
		if err != nil {
			return err
		}
		if other, ok := seen[string(text)]; ok {
			return fmt.Errorf("%s is %s", name, other)
		}
		seen[string(text)] = name
	}
	return nil
}

// auditCovers creates, reads and changes a Secret.
func auditCovers(b *bench) error {
	const hidden = "not-for-the-log"
	secrets := b.Client.CoreV1().Secrets(cluster.Namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "audited"}, StringData: map[string]string{"text": hidden}}
	if _, err := secrets.Create(b.Context(), secret, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := secrets.Get(b.Context(), "audited", metav1.GetOptions{}); err != nil {
		return err
	}
	var faults []error
	for _, verb := range []string{"create", "get"} {
		faults = append(faults, audit(`"verb":"`+verb+`"`, `"resource":"secrets"`, `"name":"audited"`, `"level":"Metadata"`)(b))
	}
	log, err := os.ReadFile(b.host.Path(auditLog))
	if bytes.Contains(log, []byte(hidden)) || bytes.Contains(log, []byte(`"resource":"leases"`)) {
		faults = append(faults, errors.New("the audit log has the content of the Secret, or requests for leases"))
	}
	return errors.Join(append(faults, err)...)
}
