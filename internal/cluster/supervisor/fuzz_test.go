package supervisor

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// FuzzSigned joins under any name, with any addresses, and with valid certificate
// requests. The certificates are only for that node and those addresses.
func FuzzSigned(f *testing.F) {
	c := newCluster(f)
	dir := datadir.Dir(f.TempDir())
	if err := os.MkdirAll(dir.AgentTLS(), 0o700); err != nil {
		f.Fatal(err)
	}
	requests, err := pki.NewNode(dir, "edge", nil).Requests(false)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("edge", "192.0.2.9", "2001:db8::9", "password")
	f.Add("kubernetes.default.svc", "10.43.0.1", "", "password")
	f.Add("server", "192.0.2.1", "", "password")
	f.Add("a", "::ffff:192.0.2.9", "fe80::1", "password")
	f.Add("a,system:masters", "192.0.2.9", "", "password")
	f.Add("a", "192.0.2.9", "", "")
	f.Fuzz(func(t *testing.T, node, first, second, password string) {
		request := join.Request{Node: node, Password: password, Requests: requests}
		for _, text := range []string{first, second} {
			if ip, err := netip.ParseAddr(text); err == nil {
				request.Addresses = append(request.Addresses, ip)
			}
		}
		body, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		response := c.call("POST", join.JoinPath, body, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+goodBearer) })
		if response.Code != http.StatusOK {
			if response.Code != http.StatusBadRequest && response.Code != http.StatusForbidden {
				t.Errorf("status %d: %s", response.Code, response.Body)
			}
			return
		}
		// Otherwise hours of fuzzing would fill the memory.
		client := c.client.(*fake.Clientset)
		if err := client.CoreV1().Secrets("kube-system").Delete(t.Context(), node+".node-password.kedge", metav1.DeleteOptions{}); err != nil {
			t.Errorf("%q joins, and has no registration: %v", node, err)
		}
		client.ClearActions()
		var answer join.Response
		if err := json.Unmarshal(response.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		for _, wanted := range pki.NodeCertificates(node) {
			block, _ := pem.Decode(answer.Certificates[wanted.Name])
			if block == nil {
				t.Fatalf("%q has no certificate %s", node, wanted.Name)
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			checkSigned(t, cert, wanted, request)
		}
	})
}

// checkSigned fails the test if a certificate allows more than a node's should.
func checkSigned(t *testing.T, cert *x509.Certificate, wanted pki.NodeCertificate, request join.Request) {
	t.Helper()
	own := func(group string) bool {
		return group == pki.NodesGroup || group == pki.NodeGroup(request.Node) || strings.HasPrefix(group, pki.RegistrationGroup(""))
	}
	if cert.Subject.CommonName != wanted.User || cert.IsCA || slices.ContainsFunc(cert.Subject.Organization, func(group string) bool { return !own(group) }) {
		t.Errorf("certificate %s of node %q: got subject %s, want user %s, no authority, and groups of this node only", wanted.Name, request.Node, cert.Subject, wanted.User)
	}
	if !wanted.Serving {
		if len(cert.DNSNames)+len(cert.IPAddresses) > 0 || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
			t.Errorf("the certificate %s of node %q is for serving", wanted.Name, request.Node)
		}
		return
	}
	if !slices.Equal(cert.DNSNames, []string{request.Node}) {
		t.Errorf("node %q may serve as %q", request.Node, cert.DNSNames)
	}
	for _, served := range cert.IPAddresses {
		ip, ok := netip.AddrFromSlice(served)
		if !ok || !slices.ContainsFunc(request.Addresses, func(asked netip.Addr) bool { return asked.Unmap() == ip.Unmap() }) {
			t.Errorf("node %q with %v may serve as %s", request.Node, request.Addresses, served)
		}
	}
}

// FuzzServers sends anything, as any caller, to the paths for joining servers.
func FuzzServers(f *testing.F) {
	c := newCluster(f)
	c.cfg.Etcd = &member{}
	c.mux = newMux(c.routes())
	token, err := join.ParseToken(c.token)
	if err != nil {
		f.Fatal(err)
	}
	paths := []string{join.MemberPath, join.TokenPath, join.SecretsPath}
	f.Add(uint(0), join.ServerUser, "wrong", []byte(`{"name":"a","peerURL":"https://192.0.2.2:2380"}`), false)
	f.Add(uint(0), "", "", []byte(`{"name":"a","peerURL":"https://192.0.2.2:2380"}`), true)
	f.Add(uint(0), "", "", []byte(`{"name":["a"]}`), true)
	f.Add(uint(1), join.NodeUser, "agents", []byte{}, false)
	f.Add(uint(2), join.NodeUser, "agents", []byte{}, false)
	f.Fuzz(func(t *testing.T, path uint, user, secret string, body []byte, honest bool) {
		if honest {
			user, secret = token.User, token.Secret
		}
		route := paths[path%uint(len(paths))]
		method := "POST"
		if route == join.SecretsPath {
			if honest {
				return // FuzzSeal covers it, and sealing is slow on purpose
			}
			method = "GET"
		}
		response := c.call(method, route, body, func(r *http.Request) { r.SetBasicAuth(user, secret) })
		known := user == token.User && secret == token.Secret
		switch {
		case !known && response.Code != http.StatusUnauthorized:
			t.Errorf("%s as %q with %q: status %d", route, user, secret, response.Code)
		case known && response.Code >= http.StatusInternalServerError && response.Code != http.StatusServiceUnavailable:
			t.Errorf("%s: status %d: %s", route, response.Code, response.Body)
		}
	})
}
