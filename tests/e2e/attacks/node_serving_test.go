package attacks

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestNodePosesAsTheAPI: pods trust ca.crt, with which Prometheus verifies kubelets. A certificate
// that the authority of nodes has signed must pass for a kubelet's, and never for the API server's.
func TestNodePosesAsTheAPI(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent, victim := c.Join(network, "agent-1").Host, c.Join(network, "agent-2").Host
	const caFile = "/run/ca.crt"
	c.Eventually("pods to be told whom to trust", func() error {
		ca, err := c.TryKubectl("", "get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`)
		if err == nil {
			victim.WriteFile(caFile, ca+"\n")
		}
		return err
	})
	on := on(c, victim)
	// fetch sends a request like a client in a pod that trusts ca.crt, and returns the answer.
	fetch := func(address, url string, args ...string) (string, error) {
		t.Helper()
		host, rest, _ := strings.Cut(strings.TrimPrefix(url, "https://"), ":")
		port, _, _ := strings.Cut(rest, "/")
		return on.run("", "curl", append([]string{"--silent", "--show-error", "--max-time", "20", "--cacert", caFile,
			"--connect-to", host + ":" + port + ":" + address + ":" + port}, append(args, url)...)...)
	}

	t.Run("Prometheus", func(t *testing.T) {
		c.Apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: prometheus}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scrapes}
rules: [{apiGroups: [""], resources: [nodes/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scrapes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scrapes}
subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]
`)
		token := c.Kubectl("create", "token", "prometheus")
		for name, host := range map[string]*harness.Host{"server-1": c.Server.Host, "agent-1": agent, "agent-2": victim} {
			for _, called := range []string{host.Address.String(), name} {
				metrics, err := fetch(host.Address.String(), "https://"+called+":10250/metrics", "--header", "Authorization: Bearer "+token)
				if err != nil || !strings.Contains(metrics, "kubelet_") {
					t.Errorf("metrics of %s: %v: %.200s", called, err, metrics)
				}
			}
		}
		if answer, err := fetch(c.Server.Host.Address.String(), "https://kubernetes.default.svc:6443/version", "--header", "Authorization: Bearer "+token); err != nil || !strings.Contains(answer, "gitVersion") {
			t.Errorf("the API: %v: %.200s", err, answer)
		}
	})

	// agent-1's certificate has its own name and address.
	pair, err := tls.LoadX509KeyPair(agent.Path(tlsFolder+"serving-kubelet.crt"), agent.Path(tlsFolder+"serving-kubelet.key"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"}
	port := pose(t, agent, pair)
	for _, name := range append(names, "agent-2") {
		if answer, err := fetch(agent.Address.String(), "https://"+name+":"+port+"/"); err == nil {
			t.Errorf("agent-1 passes for %s: %s", name, answer)
		}
	}
	if answer, err := fetch(agent.Address.String(), "https://"+agent.Address.String()+":"+port+"/"); err != nil {
		t.Errorf("agent-1 does not pass for itself: %v: %s", err, answer)
	}
	// An older kedge may have signed more names.
	authority, err := tls.LoadX509KeyPair(c.Server.Host.Path("/var/lib/kedge/server/tls/client-ca.crt"), c.Server.Host.Path("/var/lib/kedge/server/tls/client-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		port := pose(t, agent, signedFor(t, authority, pair, name))
		answer, err := fetch(agent.Address.String(), "https://"+name+":"+port+"/")
		if err == nil {
			t.Errorf("a certificate of nodes passes for %s: %s", name, answer)
		} else if !strings.Contains(err.Error(), "excluded subtree") {
			t.Errorf("%s is refused for another reason: %v", name, err)
		}
	}
	port = pose(t, agent, signedFor(t, authority, pair, "10.43.0.1"))
	if answer, err := fetch(agent.Address.String(), "https://10.43.0.1:"+port+"/"); err == nil || !strings.Contains(err.Error(), "excluded subtree") {
		t.Errorf("the API's address as a Service: %v: %s", err, answer)
	}
	// Agents and users trust only the authority of servers.
	told, err := on.run("", "curl", "--silent", "--insecure", on.url("/cacerts"))
	file, errFile := os.ReadFile(c.Server.Host.Path("/var/lib/kedge/server/tls/server-ca.crt"))
	if err != nil || errFile != nil || strings.TrimSpace(told) != strings.TrimSpace(string(file)) {
		t.Errorf("/cacerts: %v, %v:\n%s", err, errFile, told)
	}
}

// pose serves HTTPS on a host with a certificate, and returns the port.
func pose(t *testing.T, host *harness.Host, certificate tls.Certificate) string {
	t.Helper()
	listener := host.Listen(host.Address.String() + ":0")
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "I am the API server") }),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { server.Close() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// signedFor returns a certificate for a server called name with the key of pair, signed by an
// authority of nodes.
func signedFor(t *testing.T, authority, pair tls.Certificate, name string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "system:node:agent-1", Organization: []string{"system:nodes"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, pair.PrivateKey.(crypto.Signer).Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: pair.PrivateKey}
}

// TestNewcomerIsTheAPI: a holder of a join token wants a node whose name is the API's, whose
// address is the API's, or whose name is another node's address.
func TestNewcomerIsTheAPI(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	newcomer := cluster.NewHost(t, network, "newcomer")
	secret := c.Server.Token()
	_, credentials, _ := strings.Cut(secret, "::")
	a := on(c, newcomer)
	server := c.Server.Host.Address.String()
	try := func(node, address string) (string, error) {
		t.Helper()
		newcomer.WriteFile("/run/join.sh", fmt.Sprintf(joinScript, node, address, credentials, a.url("/v1-kedge/join")))
		return a.run("", "sh", "/run/join.sh")
	}
	for _, test := range []struct{ node, address string }{
		{"kubernetes", newcomer.Address.String()},
		{"kubernetes.default.svc", newcomer.Address.String()},
		{"kubernetes.default.svc.cluster.local", newcomer.Address.String()},
		{"metrics-server.kube-system.svc", newcomer.Address.String()},
		{"localhost", newcomer.Address.String()},
		{"10.43.0.1", newcomer.Address.String()},
		{"192.0.2.77", newcomer.Address.String()},
		{"thief", server},
		{"thief", "10.43.0.1"},
	} {
		answer, err := try(test.node, test.address)
		if err != nil || !strings.HasSuffix(answer, "\n400") && answer != "400" {
			t.Errorf("%s with the address %s: %v: %.300s", test.node, test.address, err, answer)
		}
	}
	if answer, err := try("newcomer", newcomer.Address.String()); err != nil || !strings.HasSuffix(answer, "\n200") {
		t.Errorf("an honest node: %v: %.300s", err, answer)
	}
}

// joinScript requests the certificates of a node, and prints the answer and its status.
const joinScript = `set -e
cd /run
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout join.key -subj /CN=any -outform DER -out join.csr 2>/dev/null
csr=$(base64 -w0 join.csr)
cat > join.json <<END
{"node": "%[1]s", "addresses": ["%[2]s"], "password": "0123456789abcdef0123456789abcdef%[1]s", "requests": {
"client-kubelet": "$csr", "serving-kubelet": "$csr", "client-kube-proxy": "$csr",
"client-flannel": "$csr", "client-dns": "$csr", "client-storage": "$csr"}}
END
curl --silent --insecure --user '%[3]s' --data @join.json --write-out '\n%%{http_code}' '%[4]s'
`
