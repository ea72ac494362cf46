package tunnel

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// authority signs the certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) sign(t *testing.T, name string, group string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		Subject:     pkix.Name{CommonName: name, Organization: []string{group}},
		DNSNames:    []string{"kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// client is the TLS configuration of a node.
func (a *authority) client(t *testing.T, node string) *tls.Config {
	return &tls.Config{
		RootCAs: a.pool(), ServerName: "kubernetes.default.svc",
		Certificates: []tls.Certificate{a.sign(t, "system:node:"+node, "system:nodes")},
	}
}

// nodeName does the check that the supervisor does.
func (a *authority) nodeName(r *http.Request) (string, error) {
	if len(r.TLS.PeerCertificates) == 0 {
		return "", errors.New("no certificate")
	}
	leaf := r.TLS.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: a.pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return "", err
	}
	node, ok := strings.CutPrefix(leaf.Subject.CommonName, "system:node:")
	if !ok {
		return "", fmt.Errorf("%s is not a node", leaf.Subject.CommonName)
	}
	return node, nil
}

// serverFor starts a server whose only route is the tunnel.
func serverFor(t *testing.T, ca *authority) (*Server, *httptest.Server) {
	t.Helper()
	tunnels := NewServer(nil)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if node, err := ca.nodeName(r); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
		} else {
			tunnels.Serve(w, r, node)
		}
	}))
	web.EnableHTTP2 = true
	web.TLS = &tls.Config{
		Certificates: []tls.Certificate{ca.sign(t, "server", "")},
		ClientAuth:   tls.RequestClientCert,
	}
	web.StartTLS()
	t.Cleanup(web.Close)
	return tunnels, web
}

// known is a list of servers that a test changes.
type known struct {
	mu        sync.Mutex
	addresses []string
	changed   chan struct{}
}

func knows(addresses ...string) *known {
	return &known{addresses: addresses, changed: make(chan struct{})}
}

func (k *known) Servers() ([]string, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.addresses, k.changed
}

func (k *known) set(addresses ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.changed)
	k.addresses, k.changed = addresses, make(chan struct{})
}

// startAgent runs an agent on 127.0.0.1, with the kubelet at a port, and waits until its
// first tunnel is open. The returned function stops it.
func startAgent(t *testing.T, config *tls.Config, servers Servers, node string, kubelet int) func() {
	t.Helper()
	agent := NewAgent(AgentConfig{
		NodeName: node, NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		KubeletPort: kubelet, Servers: servers, TLS: config,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		agent.run(ctx, fake.NewClientset(), sync.OnceFunc(func() { close(ready) }))
	}()
	stop := func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	<-ready
	return stop
}

// startEcho runs a server that returns what it gets, and returns its port.
func startEcho(t *testing.T) int {
	return startTarget(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

func startTarget(t *testing.T, serve func(net.Conn)) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		conns.Wait()
	})
	return listener.Addr().(*net.TCPAddr).Port
}

// eventually waits until Dial works, because the server may not have seen yet that the
// agent has opened the tunnel.
func eventually(t *testing.T, tunnels *Server, node, address string) net.Conn {
	t.Helper()
	for {
		conn, err := tunnels.Dial(t.Context(), node, address)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// echo sends data through a connection and fails unless it comes back.
func echo(conn net.Conn, size int) error {
	data := make([]byte, size)
	_, _ = rand.Read(data)
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		written <- err
	}()
	got := make([]byte, size)
	_, err := io.ReadFull(conn, got)
	if err := errors.Join(err, <-written); err != nil {
		return err
	}
	if !bytes.Equal(got, data) {
		return errors.New("other data came back")
	}
	return nil
}

func TestDial(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	port := startEcho(t)
	startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", port)
	eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", port))

	var all sync.WaitGroup
	for i := range 50 {
		host := []string{"node-a", "127.0.0.1", "[::ffff:127.0.0.1]"}[i%3]
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			conn, err := tunnels.Dial(ctx, "node-a", fmt.Sprintf("%s:%d", host, port))
			cancel() // the context is only for the dialing
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for _, size := range []int{1, 1 << 10, 1 << 20} {
				if err := echo(conn, size); err != nil {
					t.Errorf("echo %d bytes: %v", size, err)
				}
			}
		})
	}
	all.Wait()
}

func TestAnswers(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	if answers, known := tunnels.Answers(t.Context(), "node-a"); answers || known {
		t.Errorf("a node that was never here answers: %t, is known: %t", answers, known)
	}
	port := startEcho(t)
	stop := startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", port)
	eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", port)).Close()
	if answers, known := tunnels.Answers(t.Context(), "node-a"); !answers || !known {
		t.Errorf("the node answers: %t, is known: %t", answers, known)
	}
	stop()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		answers, known := tunnels.Answers(t.Context(), "node-a")
		if !answers && known {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node that has stopped answers: %t, is known: %t", answers, known)
		}
	}
}

func TestDialTellsWhy(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	port := startEcho(t)
	startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", port)
	conn := eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", port))

	for _, test := range []struct{ node, address, want string }{
		{"node-b", "node-b:10250", "no tunnel"},
		{"node-a", "node-a:22", "refused"},
		{"node-a", "192.0.2.1:80", "refused"},
		{"node-a", "example.com:443", "refused"},
		{"node-a", "node-a:http", "not a port"},
	} {
		if _, err := tunnels.Dial(t.Context(), test.node, test.address); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("dial %s: got %v, want %q in it", test.address, err, test.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := tunnels.Dial(ctx, "node-a", fmt.Sprintf("node-a:%d", port)); !errors.Is(err, context.Canceled) {
		t.Errorf("dial when cancelled: got %v", err)
	}
	// The tunnel is still open after all that.
	if err := echo(conn, 1<<10); err != nil {
		t.Error(err)
	}
}

func TestDialTellsOfClosedPorts(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	const closed = 1 // tcpmux, a port that nothing serves
	startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", closed)
	for {
		_, err := tunnels.Dial(t.Context(), "node-a", "node-a:1")
		if err == nil {
			t.Fatal("connected to a closed port")
		}
		if strings.Contains(err.Error(), "connection refused") {
			return
		}
		if !strings.Contains(err.Error(), "no tunnel") {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestEndsArrive(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	gone := make(chan struct{}, 1)
	port := startTarget(t, func(conn net.Conn) {
		first := make([]byte, 1)
		if _, err := conn.Read(first); err != nil {
			gone <- struct{}{} // the caller has closed
			return
		}
		_, _ = io.WriteString(conn, "bye")
	})
	address := fmt.Sprintf("node-a:%d", port)
	stop := startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", port)

	conn := eventually(t, tunnels, "node-a", address)
	_, _ = conn.Write([]byte{1})
	if got, err := io.ReadAll(conn); string(got) != "bye" || err != nil {
		t.Errorf("the target's end: got %q, %v", got, err)
	}
	_ = eventually(t, tunnels, "node-a", address).Close()
	<-gone
	conn = eventually(t, tunnels, "node-a", address)
	if err := conn.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("deadline: got %v", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	stop()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlived the agent")
	}
	<-gone
}

// TestStalledStream writes to a target that does not read, until nothing more can be
// sent. Other connections must still work.
func TestStalledStream(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	release := make(chan struct{})
	port := startTarget(t, func(conn net.Conn) {
		kind := make([]byte, 1)
		if _, _ = conn.Read(kind); kind[0] == 's' {
			<-release
			return
		}
		_, _ = io.Copy(conn, conn)
	})
	address := fmt.Sprintf("node-a:%d", port)
	startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", port)
	for range 8 {
		stalled := eventually(t, tunnels, "node-a", address)
		_, _ = stalled.Write([]byte{'s'})
		for {
			_ = stalled.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := stalled.Write(make([]byte, 1<<20)); err != nil {
				break
			}
		}
	}
	conn := eventually(t, tunnels, "node-a", address)
	_, _ = conn.Write([]byte{'e'})
	if err := echo(conn, 1<<20); err != nil {
		t.Error(err)
	}
	close(release)
}

func TestReconnect(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	port := startEcho(t)
	address := fmt.Sprintf("node-a:%d", port)
	startAgent(t, ca.client(t, "node-a"), knows(web.Listener.Addr().String()), "node-a", port)
	for range 3 {
		conn := eventually(t, tunnels, "node-a", address)
		for _, session := range tunnels.of("node-a") {
			session.close()
			<-session.ended
		}
		if err := echo(conn, 1); err == nil {
			t.Error("a connection outlived its tunnel")
		}
	}
	eventually(t, tunnels, "node-a", address)
}

// TestNewestTunnel has two agents of one name, as after the reboot of a node, when the
// server has not noticed yet that the old connection is dead.
func TestNewestTunnel(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	servers := knows(web.Listener.Addr().String())
	oldPort, newPort := startEcho(t), startEcho(t)
	startAgent(t, ca.client(t, "node-a"), servers, "node-a", oldPort)
	eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", oldPort))
	stop := startAgent(t, ca.client(t, "node-a"), servers, "node-a", newPort)
	eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", newPort))
	if _, err := tunnels.Dial(t.Context(), "node-a", fmt.Sprintf("node-a:%d", oldPort)); err == nil {
		t.Error("dialed through the older tunnel")
	}

	// The newest tunnel breaks while the server dials through it.
	broken := tunnels.of("node-a")[1]
	broken.close()
	<-broken.ended
	tunnels.add("node-a", broken)
	eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", newPort))
	tunnels.remove("node-a", broken)
	stop()
	eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", oldPort))
}

// TestTooManyTunnels: if a node opens more tunnels than allowed, the newest stay, and
// other nodes keep theirs.
func TestTooManyTunnels(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	tunnels, web := serverFor(t, ca)
	servers, port := knows(web.Listener.Addr().String()), startEcho(t)
	startAgent(t, ca.client(t, "node-b"), servers, "node-b", port)
	other := eventually(t, tunnels, "node-b", fmt.Sprintf("node-b:%d", port))
	var first *session
	for i := range 2 * sessionLimit {
		conn, err := open(t.Context(), web.Listener.Addr().String(), ca.client(t, "node-a"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for want := min(i+1, sessionLimit); len(tunnels.of("node-a")) < want; {
			time.Sleep(time.Millisecond)
		}
		if first == nil {
			first = tunnels.of("node-a")[0]
		}
	}
	<-first.ended
	if n := len(tunnels.of("node-a")); n > sessionLimit {
		t.Errorf("%d tunnels of one node are open", n)
	}
	startAgent(t, ca.client(t, "node-a"), servers, "node-a", port)
	if err := errors.Join(echo(eventually(t, tunnels, "node-a", fmt.Sprintf("node-a:%d", port)), 1), echo(other, 1)); err != nil {
		t.Error(err)
	}
}

func TestServersChange(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	first, firstWeb := serverFor(t, ca)
	second, secondWeb := serverFor(t, ca)
	port := startEcho(t)
	address := fmt.Sprintf("node-a:%d", port)
	servers := knows("127.0.0.1:1", firstWeb.Listener.Addr().String())
	startAgent(t, ca.client(t, "node-a"), servers, "node-a", port)
	eventually(t, first, "node-a", address)
	servers.set(firstWeb.Listener.Addr().String(), secondWeb.Listener.Addr().String())
	eventually(t, second, "node-a", address)
	servers.set(secondWeb.Listener.Addr().String())
	for len(first.of("node-a")) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	eventually(t, second, "node-a", address)
}

// TestReports has an agent that no server accepts any more, and one that reaches no server. `kedge status`
// is to say the reason as long as it lasts.
func TestReports(t *testing.T) {
	testutil.CheckLeaks(t)
	ca := newAuthority(t)
	_, web := serverFor(t, ca)
	there := web.Listener.Addr().String()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := silent.Addr().String()
	_ = silent.Close()
	former := &tls.Config{RootCAs: ca.pool(), ServerName: "kubernetes.default.svc"}
	for _, test := range []struct {
		name    string
		config  *tls.Config
		servers []string
		want    string
	}{
		{"former", former, []string{there}, "the node was deleted or revoked. To join again, restart kedge with a join token"},
		{"former, and another server is gone", former, []string{there, gone}, "the node was deleted or revoked"},
		{"no server", ca.client(t, "node-a"), []string{gone}, "connection refused"},
	} {
		servers := knows(test.servers...)
		agent := NewAgent(AgentConfig{NodeName: "node-a", Servers: servers, TLS: test.config})
		faults := make(chan string, 100)
		group := component.Group{OnFault: func(s component.Status) { faults <- s.Fault }}
		group.Add(component.Func("tunnel", func(ctx context.Context, ready func()) error {
			agent.run(ctx, fake.NewClientset(), ready)
			return nil
		}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- group.Run(ctx) }()
		wait := func(what string, fits func(fault string) bool) {
			t.Helper()
			for deadline := time.After(time.Minute); ; {
				if fits(group.Status()[0].Fault) {
					return
				}
				select {
				case <-faults:
				case <-deadline:
					t.Fatalf("%s: %s: the fault is %q", test.name, what, group.Status()[0].Fault)
				}
			}
		}
		wait("at first", func(fault string) bool { return strings.Contains(fault, test.want) })
		// Without the server that refuses, nothing is wrong.
		servers.set()
		wait("without servers", func(fault string) bool { return fault == "" })
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	a := NewAgent(AgentConfig{})
	a.faults["b"], a.faults["a"] = errors.New("down"), nil
	if fault := a.faultLocked(); fault != nil {
		t.Errorf("with a tunnel to one of two servers, the fault is %v", fault)
	}
}

func TestWhoMayOpen(t *testing.T) {
	testutil.CheckLeaks(t)
	ca, other := newAuthority(t), newAuthority(t)
	tunnels, web := serverFor(t, ca)
	for name, test := range map[string]struct {
		certificates []tls.Certificate
		want         string
	}{
		"nobody":            {nil, "no longer accepts"},
		"no node":           {[]tls.Certificate{ca.sign(t, "system:kube-proxy", "")}, "no longer accepts"},
		"another authority": {[]tls.Certificate{other.sign(t, "system:node:node-a", "system:nodes")}, "no longer accepts"},
	} {
		config := &tls.Config{RootCAs: ca.pool(), ServerName: "kubernetes.default.svc", Certificates: test.certificates}
		conn, err := open(t.Context(), web.Listener.Addr().String(), config)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q in it", name, err, test.want)
		}
	}
	// A node that does not ask for the upgrade, over HTTP/1.1 and HTTP/2.
	for _, http2 := range []bool{false, true} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.client(t, "node-a"), ForceAttemptHTTP2: http2}}
		response, err := client.Get(web.URL)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		client.CloseIdleConnections()
		if response.StatusCode != http.StatusUpgradeRequired {
			t.Errorf("HTTP/%d without upgrade: got %s", response.ProtoMajor, response.Status)
		}
	}
	// An agent does not show its certificate to the server of another cluster.
	if _, err := open(t.Context(), web.Listener.Addr().String(), other.client(t, "node-a")); err == nil ||
		!strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a server of another authority: got %v", err)
	}
	if n := len(tunnels.sessions); n > 0 {
		t.Errorf("%d tunnels are open", n)
	}
}
