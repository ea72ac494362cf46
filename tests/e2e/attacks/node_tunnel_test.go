package attacks

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// captured is an agent whose kedge was stopped by somebody with root there. The attacker has the
// agent's certificates and speaks kedge's protocols with them.
type captured struct {
	*attacker
	agent *harness.Agent

	mu sync.Mutex
	// serving is the certificate that the attacker's kubelet shows.
	serving tls.Certificate
	// targets are the addresses that the server asked the attacker to dial. requests are the
	// paths for which the attacker's kubelet was asked.
	targets, requests []string
}

// capture stops the kedge of an agent and takes its place.
func capture(c *cluster.Cluster, agent *harness.Agent) *captured {
	c.Helper()
	agent.Terminate()
	a := &captured{attacker: on(c, agent.Host), agent: agent}
	a.serving = a.pair("serving-kubelet")
	return a
}

// pair reads a certificate of the agent and its key.
func (a *captured) pair(name string) tls.Certificate {
	a.Helper()
	pair, err := tls.LoadX509KeyPair(a.host.Path(tlsFolder+name+".crt"), a.host.Path(tlsFolder+name+".key"))
	if err != nil {
		a.Fatal(err)
	}
	return pair
}

// renew asks for certificates for these addresses, and makes the attacker's kubelet show the signed
// one. It returns the status of the answer.
func (a *captured) renew(addresses ...string) int {
	a.Helper()
	keys, err := filepath.Glob(a.host.Path(tlsFolder) + "/*-*.key")
	if err != nil || len(keys) == 0 {
		a.Fatalf("the agent's keys are %v, %v", keys, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		a.Fatal(err)
	}
	requests := map[string][]byte{}
	for _, file := range keys {
		requests[strings.TrimSuffix(filepath.Base(file), ".key")] = request
	}
	password, err := os.ReadFile(a.host.Path("/etc/kedge/node/password"))
	if err != nil {
		a.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{
		"node": a.host.Name, "addresses": addresses, "password": strings.TrimSpace(string(password)), "requests": requests,
	})
	if err != nil {
		a.Fatal(err)
	}
	a.host.WriteFile("/run/renew.json", string(body))
	status, answer := a.curl(stolen("client-kubelet"), "/v1-kedge/renew", "--data", "@/run/renew.json")
	if status != http.StatusOK {
		a.Logf("the renewal for %v is refused: %d %s", addresses, status, answer)
		return status
	}
	var signed struct{ Certificates map[string][]byte }
	if err := json.Unmarshal([]byte(answer), &signed); err != nil {
		a.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	pair, err := tls.X509KeyPair(signed.Certificates["serving-kubelet"],
		[]byte("-----BEGIN EC PRIVATE KEY-----\n"+base64.StdEncoding.EncodeToString(private)+"\n-----END EC PRIVATE KEY-----\n"))
	if err != nil {
		a.Fatal(err)
	}
	a.mu.Lock()
	a.serving = pair
	a.mu.Unlock()
	return status
}

// open opens a tunnel with a certificate, and lets handler answer requests through it. The returned
// channel is closed when the tunnel ends.
func (a *captured) open(certificate tls.Certificate, handler http.Handler) (<-chan struct{}, error) {
	a.Helper()
	text, err := os.ReadFile(a.host.Path(tlsFolder + "server-ca.crt"))
	if err != nil {
		a.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	raw, err := a.host.DialContext(a.Context(), "tcp", a.server.Host.Address.String()+":6443")
	if err != nil {
		return nil, err
	}
	a.Cleanup(func() { raw.Close() })
	conn := tls.Client(raw, &tls.Config{
		RootCAs: roots, ServerName: "kubernetes.default.svc", NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{certificate},
	})
	fmt.Fprint(conn, "GET /v1-kedge/connect HTTP/1.1\r\nHost: kubernetes.default.svc\r\nConnection: Upgrade\r\nUpgrade: kedge-tunnel\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.New(response.Status)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&http2.Server{}).ServeConn(&read{conn, reader}, &http2.ServeConnOpts{Context: a.Context(), Handler: handler})
	}()
	return ended, nil
}

// read is a connection from which some bytes have been read already.
type read struct {
	net.Conn
	reader io.Reader
}

func (r *read) Read(p []byte) (int, error) { return r.reader.Read(p) }

// ServeHTTP answers every request for a connection with the attacker's own kubelet.
func (a *captured) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.targets = append(a.targets, r.Host)
	serving := a.serving
	a.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return
	}
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, r.Body)
		far.Close()
	}()
	go func() {
		conn := tls.Server(near, &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert})
		defer conn.Close()
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		a.mu.Lock()
		a.requests = append(a.requests, request.URL.Path)
		a.mu.Unlock()
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\nintercepted")
	}()
	for buffer := make([]byte, 32<<10); ; {
		n, err := far.Read(buffer)
		if err != nil {
			return
		}
		if _, err := w.Write(buffer[:n]); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
	}
}

// wantOwn fails the test if the server asked the attacker to dial any host except these, or if the
// attacker's kubelet was asked for a path that contains one of others.
func (a *captured) wantOwn(hosts []string, others ...string) {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, target := range a.targets {
		if host, _, err := net.SplitHostPort(target); err != nil || !slices.Contains(hosts, host) {
			a.Errorf("the attacker on %s was asked to dial %s", a.host.Name, target)
		}
	}
	for _, path := range a.requests {
		for _, other := range others {
			if strings.Contains(path, other) {
				a.Errorf("the attacker on %s got the request %s", a.host.Name, path)
			}
		}
	}
}

// release starts the agent's kedge again.
func (a *captured) release() {
	a.Helper()
	a.agent.Start()
	a.agent.WaitReady()
}

// TestNodeAbusesItsTunnel opens too many tunnels, never answers, uses the wrong certificates, and gives
// answers that have no end.
func TestNodeAbusesItsTunnel(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	victim, agent := c.Join(network, "agent-2"), c.Join(network, "agent-1")
	c.RunWeb("web-b", victim.Host.Name)
	a := capture(c, agent)
	honest := func(t *testing.T) {
		t.Helper()
		c := *c
		c.T = t
		c.Answers("web-b", "http://localhost:"+cluster.WebPort+"/", "web-b")
	}

	t.Run("with another certificate", func(t *testing.T) {
		// The kubelet's serving certificate is its node's, but not a client's.
		for _, name := range []string{"serving-kubelet", "client-kube-proxy", "client-storage"} {
			if _, err := a.open(a.pair(name), a); err == nil {
				t.Errorf("a tunnel was opened with the certificate %s, want it refused", name)
			}
		}
	})
	t.Run("too many", func(t *testing.T) {
		c := *c
		c.T = t
		const many, most = 100, 16
		ended := make(chan struct{}, many)
		for range many {
			closed, err := a.open(a.pair("client-kubelet"), a)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				<-closed
				ended <- struct{}{}
			}()
		}
		c.Eventually("the server to close all but the newest", func() error {
			if n := len(ended); n < many-most {
				return fmt.Errorf("%d of %d are open", many-n, many)
			}
			return nil
		})
		honest(t)
	})
	t.Run("without an answer", func(t *testing.T) {
		silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		if _, err := a.open(a.pair("client-kubelet"), silent); err != nil {
			t.Fatal(err)
		}
		// The API server ends this request: kubectl would wait forever.
		output, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/agent-1/proxy/healthz")
		if err == nil || strings.Contains(err.Error(), "killed") {
			t.Errorf("a request to a node that does not answer: %v %s", err, output)
		}
		honest(t)
	})
	t.Run("with an answer that has no end", func(t *testing.T) {
		sent := make(chan int, 1)
		endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for i := range 10000 { // 10 MB
				w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1000))
			}
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			select {
			case sent <- 1:
			default:
			}
			<-r.Context().Done()
		})
		if _, err := a.open(a.pair("client-kubelet"), endless); err != nil {
			t.Fatal(err)
		}
		output, err := c.TryKubectl("", "get", "--raw", "/api/v1/nodes/agent-1/proxy/healthz")
		if err == nil || strings.Contains(err.Error(), "killed") {
			t.Errorf("a request to a node whose answer has no end: got %v %s, want the server to end it", err, output)
		}
		<-sent
		honest(t)
	})
	a.release()
	c.RunWeb("web-a", agent.Host.Name)
	c.Answers("web-a", "http://localhost:"+cluster.WebPort+"/", "web-a")
}
