package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
)

const (
	goodBearer = "abcdef.0123456789abcdef"
	// otherBearer is a token that the API knows, but that is not for joining.
	otherBearer = "fedcba.0123456789abcdef"
)

// cluster is a server that admits nodes. It has no port.
type cluster struct {
	*Supervisor
	mux http.Handler
	// token is the whole join token.
	token string
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	return clusterIn(t, datadir.Dir(t.TempDir()), newAPI())
}

// clusterIn returns the cluster in a data directory and an API server. If the directory
// has none, it makes a new one.
func clusterIn(t testing.TB, dir datadir.Dir, client *fake.Clientset) *cluster {
	t.Helper()
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir: dir, NodeName: "server", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ClusterDomain: "cluster.local",
	})
	if err != nil {
		t.Fatal(err)
	}
	token, err := join.EnsureToken(dir, "", certificates.ServerCA())
	if err != nil {
		t.Fatal(err)
	}
	if err := join.EnsureAgentToken(dir, "agents", certificates.ServerCA()); err != nil {
		t.Fatal(err)
	}
	s := New(Config{
		PKI: certificates, Dir: dir, Now: time.Now, Registry: follow(t, client),
		Settings: join.Settings{Version: version.Version, Cluster: config.Default().Cluster},
		Tunnel:   func(w http.ResponseWriter, _ *http.Request, node string) { _, _ = io.WriteString(w, "tunnel of "+node) },
		API: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "the API's own answer", http.StatusTeapot)
		}),
	})
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		groups := map[string][]string{
			goodBearer:  {"system:bootstrappers", join.NewcomersGroup},
			otherBearer: {"system:bootstrappers"},
		}[review.Spec.Token]
		review.Status.Authenticated = groups != nil
		review.Status.User.Groups = groups
		return true, review, nil
	})
	s.client = client
	return &cluster{s, newMux(s.routes()), token}
}

// newAPI returns a fake API server that gives Secrets a UID and a time, as a real one
// does.
func newAPI() *fake.Clientset {
	client := fake.NewClientset()
	client.PrependReactor("create", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		secret := action.(clienttesting.CreateAction).GetObject().(*corev1.Secret)
		secret.UID, secret.CreationTimestamp = uuid.NewUUID(), metav1.Now()
		return false, nil, nil
	})
	return client
}

// follow runs the registry of a cluster until the test ends.
func follow(t testing.TB, client kubernetes.Interface) *registration.Registry {
	t.Helper()
	registry := registration.New()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- registry.Follow(client, objectcache.Own(client)).Run(ctx, func() { close(ready) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
	return registry
}

// node adds a node to the cluster without the supervisor. Its address is made from the
// first letter of its name.
func (c *cluster) node(t testing.TB, name string) *pki.Node {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	if err := os.MkdirAll(dir.AgentTLS(), 0o700); err != nil {
		t.Fatal(err)
	}
	n := pki.NewNode(dir, name, nil)
	requests, err := n.Requests(false)
	if err != nil {
		t.Fatal(err)
	}
	ip := netip.AddrFrom4([4]byte{198, 51, 100, name[0]})
	uid, err := c.cfg.Registry.Join(t.Context(), registration.Claim{Node: name, Password: "password", Addresses: []netip.Addr{ip}})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := c.cfg.PKI.SignNode(name, uid, []netip.Addr{ip}, requests)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Accept(c.cfg.PKI.ServerCA(), c.cfg.PKI.ClientCA(), signed); err != nil {
		t.Fatal(err)
	}
	return n
}

// certificate returns the certificate that a node shows as one of its users.
func certificate(t testing.TB, n *pki.Node, user string) []*x509.Certificate {
	t.Helper()
	c, err := n.TLS(user).GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{c.Leaf}
}

// TestRoutes calls every route as all kinds of callers, allowed and not.
func TestRoutes(t *testing.T) {
	c, stranger := newCluster(t), newCluster(t)
	token, err := join.ParseToken(c.token)
	if err != nil {
		t.Fatal(err)
	}
	edge := c.node(t, "edge")
	basic := func(user, secret string) func(*http.Request) {
		return func(r *http.Request) { r.SetBasicAuth(user, secret) }
	}
	header := func(text string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", text) }
	}
	shows := func(chain []*x509.Certificate) func(*http.Request) {
		return func(r *http.Request) { r.TLS.PeerCertificates = chain }
	}
	nodes := map[string]func(*http.Request){
		"a node": shows(certificate(t, edge, pki.NodeUser("edge"))),
	}
	servers := map[string]func(*http.Request){
		"the server token": basic("server", token.Secret),
	}
	newcomers := map[string]func(*http.Request){
		"the server token":  basic("server", token.Secret),
		"the agent token":   basic("node", "agents"),
		"a bootstrap token": header("Bearer " + goodBearer),
	}
	strangers := map[string]func(*http.Request){
		"nothing":                     func(*http.Request) {},
		"a wrong secret":              basic("server", token.Secret+"0"),
		"an empty secret":             basic("server", ""),
		"the agent's as the server's": basic("server", "agents"),
		"an unknown user":             basic("admin", token.Secret),
		"an unknown bootstrap token":  header("Bearer zzzzzz.0123456789abcdef"),
		"another bootstrap token":     header("Bearer " + otherBearer),
		"a bearer of another kind":    header("Bearer " + token.Secret),
		"an empty bearer":             header("Bearer "),
		"nonsense":                    header("Basic !"),
		"a service of a node":         shows(certificate(t, edge, "system:kube-proxy")),
		"a node of another cluster":   shows(certificate(t, stranger.node(t, "edge"), pki.NodeUser("edge"))),
		"a node and a wrong secret": func(r *http.Request) {
			r.TLS.PeerCertificates = certificate(t, stranger.node(t, "edge"), pki.NodeUser("edge"))
			r.SetBasicAuth("server", "wrong")
		},
	}
	for _, route := range []struct {
		method, path string
		allowed      []map[string]func(*http.Request)
	}{
		{"GET", join.CACertsPath, []map[string]func(*http.Request){strangers, newcomers, nodes}},
		{"GET", join.ClusterPath, []map[string]func(*http.Request){newcomers, nodes}},
		{"POST", join.JoinPath, []map[string]func(*http.Request){newcomers}},
		{"POST", join.RenewPath, []map[string]func(*http.Request){nodes}},
		{"GET", join.ConnectPath, []map[string]func(*http.Request){nodes}},
		{"GET", nodestream.PoliciesPath, []map[string]func(*http.Request){nodes}},
		{"GET", nodestream.RoutesPath, []map[string]func(*http.Request){nodes}},
		{"GET", nodestream.OrdersPath, []map[string]func(*http.Request){nodes}},
		{"GET", upgrades.ExecutablePath + strings.Repeat("0", 64), []map[string]func(*http.Request){nodes}},
		{"PUT", volumedata.Path + "pvc-1", []map[string]func(*http.Request){nodes}},
		{"GET", volumedata.Path + "pvc-1", []map[string]func(*http.Request){nodes}},
		{"POST", volumedata.Path + "pvc-1", []map[string]func(*http.Request){nodes}},
		{"GET", join.SecretsPath, []map[string]func(*http.Request){servers}},
		{"POST", join.MemberPath, []map[string]func(*http.Request){servers}},
	} {
		may := map[string]bool{}
		for _, callers := range route.allowed {
			for who := range callers {
				may[who] = true
			}
		}
		for _, callers := range []map[string]func(*http.Request){strangers, newcomers, nodes} {
			for who, authorize := range callers {
				response := c.call(route.method, route.path, nil, authorize)
				refused := response.Code == http.StatusUnauthorized
				if refused == may[who] {
					t.Errorf("%s %s with %s: got %d %s, want accepted %t", route.method, route.path, who, response.Code, response.Body, may[who])
				}
				if refused && strings.TrimSpace(response.Body.String()) != "unauthorized" {
					t.Errorf("%s %s with %s: got %q, want \"unauthorized\" and nothing else", route.method, route.path, who, response.Body)
				}
			}
		}
	}
	// The table above has every route of the supervisor.
	for _, test := range []struct {
		method, path string
		want         int
	}{
		{"GET", join.JoinPath, http.StatusNotFound},
		{"POST", join.ClusterPath, http.StatusNotFound},
		{"GET", "/v1-kedge/", http.StatusNotFound},
		{"GET", "/v1-kedge/secrets", http.StatusNotFound},
		{"POST", join.CACertsPath, http.StatusTeapot},
		{"GET", "/api", http.StatusTeapot},
	} {
		if response := c.call(test.method, test.path, nil, newcomers["the server token"]); response.Code != test.want {
			t.Errorf("%s %s: %d", test.method, test.path, response.Code)
		}
	}
	if response := c.call("GET", join.ConnectPath, nil, nodes["a node"]); response.Body.String() != "tunnel of edge" {
		t.Errorf("connected: %s", response.Body)
	}
}

func (c *cluster) call(method, path string, body []byte, authorize func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "https://kubernetes.default.svc"+path, bytes.NewReader(body))
	r.TLS = &tls.ConnectionState{}
	authorize(r)
	w := httptest.NewRecorder()
	c.mux.ServeHTTP(w, r)
	return w
}

// FuzzJoin sends anything, as any caller, to join and renew.
func FuzzJoin(f *testing.F) {
	c := newCluster(f)
	edge := certificate(f, c.node(f, "edge"), pki.NodeUser("edge"))
	token, err := join.ParseToken(c.token)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Bearer "+goodBearer, []byte(`{"node":"a","addresses":["192.0.2.9"],"password":"p","requests":{}}`), true)
	f.Add("", []byte(`{"node":"edge","addresses":["::ffff:192.0.2.9"],"requests":{"client-kubelet":"AAAA"}}`), false)
	f.Add("Basic c2VydmVyOg==", []byte(`{"node":"a","addresses":[null]}`), true)
	f.Add("Bearer", []byte(`{`), true)
	f.Add("Basic c2VydmVyOm5v", []byte(`{"node":"../a","addresses":["fe80::1%eth0"]}`), true)
	f.Add("", bytes.Repeat([]byte("["), maxRequest+1), false)
	f.Add("\x00", []byte(`{"node":"`+strings.Repeat("a", 300)+`","addresses":["192.0.2.9"]}`), true)
	f.Fuzz(func(t *testing.T, authorization string, body []byte, joins bool) {
		path, authorize := join.RenewPath, func(r *http.Request) { r.TLS.PeerCertificates = edge }
		if joins {
			path, authorize = join.JoinPath, func(r *http.Request) { r.Header["Authorization"] = []string{authorization} }
		}
		switch response := c.call("POST", path, body, authorize); response.Code {
		case http.StatusOK:
			// The fuzzer cannot guess keys.
			var answer join.Response
			if err := json.Unmarshal(response.Body.Bytes(), &answer); err != nil || len(answer.Certificates) == 0 {
				t.Errorf("answer %s", response.Body)
			}
		case http.StatusUnauthorized, http.StatusBadRequest, http.StatusForbidden:
			if strings.Contains(response.Body.String(), token.Secret) {
				t.Errorf("the answer contains the token: %s", response.Body)
			}
		default:
			t.Errorf("status %d: %s", response.Code, response.Body)
		}
		if joins && authorization == "" {
			if code := c.call("POST", path, body, authorize).Code; code != http.StatusUnauthorized {
				t.Errorf("without credentials: got %d, want 401", code)
			}
		}
	})
}

// TestJoin tests the joining side, package join, against the admitting side.
func TestJoin(t *testing.T) {
	c := newCluster(t)
	listener, err := Listen("127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	var serving atomic.Pointer[pki.Server]
	serving.Store(c.cfg.PKI)
	c.cfg.Listener, c.cfg.Certificate = listener, func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return serving.Load().ServingCertificate(hello)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() {}) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.AgentTLS(), dir.AgentEtc()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ip, reachable := netip.MustParseAddr("192.0.2.2"), true
	try := func(change func(*join.Config)) (*join.Identity, error) {
		cfg := join.Config{
			Server: listener.Addr().String(),
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				address := listener.Addr().String()
				if !reachable {
					address = "127.0.0.1:1"
				}
				return new(net.Dialer).DialContext(ctx, network, address)
			},
			Name: "edge", Dir: dir, PasswordFile: filepath.Join(string(dir), "etc", "password"),
			Resolve: func(s join.Settings) (host.Node, error) {
				if s.Cluster.ClusterDomain != "cluster.local" {
					t.Errorf("told %+v", s)
				}
				return host.Node{Name: "edge", IPs: []netip.Addr{ip}}, nil
			},
		}
		change(&cfg)
		return join.Join(t.Context(), cfg)
	}
	good := func(cfg *join.Config) { cfg.Token = c.token }
	for name, test := range map[string]struct {
		change func(*join.Config)
		want   string
	}{
		"no token":    {func(*join.Config) {}, "give a join token"},
		"wrong token": {func(cfg *join.Config) { cfg.Token = c.token + "0" }, "does not accept the token"},
		"other cluster": {func(cfg *join.Config) {
			cfg.Token = "K10" + strings.Repeat("0", 64) + "::server:secret"
		}, "not of the token's cluster"},
	} {
		if _, err := try(test.change); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	first, err := try(good)
	if err != nil {
		t.Fatal(err)
	}
	kubelet := func() string {
		text, err := os.ReadFile(first.ServingCertFile())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := kubelet()
	if _, err := try(func(*join.Config) {}); err != nil || kubelet() != before {
		t.Errorf("a start by certificate: %v", err)
	}
	ip = netip.MustParseAddr("192.0.2.3")
	if _, err := try(func(*join.Config) {}); err != nil || kubelet() == before {
		t.Errorf("a start with another address renews nothing: %v", err)
	}
	reachable = false
	if again, err := try(func(*join.Config) {}); err != nil || again.Settings.Cluster.FlannelBackend != "vxlan" {
		t.Errorf("a start without a server: %v", err)
	}
	reachable = true
	serving.Store(newCluster(t).cfg.PKI)
	if _, err := try(good); err == nil || !strings.Contains(err.Error(), "not of this node's cluster") {
		t.Errorf("another cluster at the address: got error %v, want that it is not this node's", err)
	}
	serving.Store(c.cfg.PKI)

	// Another machine claims the name edge.
	dir = datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.AgentTLS(), dir.AgentEtc()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := try(good); err == nil || !strings.Contains(err.Error(), "the name edge is taken") {
		t.Errorf("impersonation: %v", err)
	}
}
