package attacks

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

const (
	// floods is how many connections the attacker opens. floodLimit is how many of them a
	// server may keep open.
	floods, floodLimit = 5000, 600
)

// established returns how many connections a host has open to the server's port, as the server sees it.
func established(c *cluster.Cluster, from *harness.Host) int {
	c.Helper()
	output, err := c.Server.Host.Command(c.Context(), "ss", "-Hnt", "state", "established", "sport", "=", ":6443", "and", "dst", from.Address.String()).Output()
	if err != nil {
		c.Fatal(err)
	}
	return strings.Count(string(output), "\n")
}

// flood opens connections to the server and calls prepare with each. The returned function closes them.
func flood(c *cluster.Cluster, from *harness.Host, prepare func(net.Conn) error) (end func()) {
	c.Helper()
	address := net.JoinHostPort(c.Server.Host.Address.String(), "6443")
	var mu sync.Mutex
	var open []net.Conn
	var opening sync.WaitGroup
	todo := make(chan struct{})
	for range 16 {
		opening.Go(func() {
			for range todo {
				conn, err := from.DialContext(c.Context(), "tcp", address)
				if err != nil {
					continue // the server may refuse
				}
				// The server may have closed it already.
				_ = prepare(conn)
				mu.Lock()
				open = append(open, conn)
				mu.Unlock()
			}
		})
	}
	for range floods {
		todo <- struct{}{}
	}
	close(todo)
	opening.Wait()
	if len(open) < floods/2 {
		c.Fatalf("only %d connections could be opened", len(open))
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}
}

// TestConnectionFlood opens thousands of connections to the API from a host and leaves them idle:
// at once, after the TLS handshake, and after a request that anybody may make. The server must keep
// few of them, and must answer other clients, even on the same host.
func TestConnectionFlood(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "iproute2")
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "agent-1").Host
	outsider := network.NewHost(t, "outsider")
	honest := on(c, agent)
	insecure := &tls.Config{InsecureSkipVerify: true}
	for _, attack := range []struct {
		name    string
		prepare func(net.Conn) error
	}{
		{"nothing sent", func(net.Conn) error { return nil }},
		{"after the handshake", func(conn net.Conn) error {
			_ = conn.SetDeadline(time.Now().Add(cluster.Patience))
			return tls.Client(conn, insecure).Handshake()
		}},
		{"after a request", func(conn net.Conn) error {
			_ = conn.SetDeadline(time.Now().Add(cluster.Patience))
			client := tls.Client(conn, insecure)
			if _, err := io.WriteString(client, "GET /livez HTTP/1.1\r\nHost: kubernetes.default.svc\r\nAuthorization: Basic YWRtaW46YWRtaW4=\r\n\r\n"); err != nil {
				return err
			}
			_, err := io.ReadAtLeast(client, make([]byte, 64), 12)
			return err
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			c := *c
			c.T = t
			end := flood(&c, outsider, attack.prepare)
			defer end()
			if open := established(&c, outsider); open > floodLimit {
				t.Errorf("the server keeps %d connections of one host open, want at most %d", open, floodLimit)
			}
			for range 10 {
				if status, body := honest.curl(credentials{}, "/readyz"); status != http.StatusOK {
					t.Errorf("the server is not ready: %d %s", status, body)
				}
				if output, err := honest.kubectl(stolen("client-kubelet"), "", "get", "node", agent.Name, "-o", "name"); err != nil {
					t.Errorf("an honest node gets no answer: %s, %v", output, err)
				}
			}
			answer, err := outsider.Command(t.Context(), "curl", "--silent", "--show-error", "--insecure", "--max-time", "60", "https://"+c.Server.Host.Address.String()+":6443/readyz").Output()
			if err != nil || string(answer) != "ok" {
				t.Errorf("the attacker's neighbour on its host gets %q, %v", answer, err)
			}
			c.WaitNode(agent.Name, corev1.ConditionTrue)
		})
	}

	t.Log("an agent joins from the address of an attacker")
	end := flood(c, outsider, func(net.Conn) error { return nil })
	defer end()
	cluster.Preload(t, outsider)
	outsider.StartAgent(t, c.Server).WaitReady()
}

// TestSlowConnections begins requests that the server waits for, and never ends them.
func TestSlowConnections(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	c := cluster.Start(t, harness.NewNetwork(t))
	host := c.Server.Host
	for name, begin := range map[string]func(net.Conn) (net.Conn, error){
		"nothing": func(conn net.Conn) (net.Conn, error) { return conn, nil },
		"a part of a handshake": func(conn net.Conn) (net.Conn, error) {
			_, err := conn.Write([]byte{22, 3, 1, 2, 0, 1})
			return conn, err
		},
		"a part of the headers": func(conn net.Conn) (net.Conn, error) {
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			_, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
			return client, err
		},
		"a body that never comes": func(conn net.Conn) (net.Conn, error) {
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			_, err := io.WriteString(client, "POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
			return client, err
		},
		"a part of HTTP/2's headers": func(conn net.Conn) (net.Conn, error) {
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
			// This is the preface, empty settings, and headers that continue in a frame that never
			// comes.
			_, err := io.WriteString(client, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82")
			return client, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := host.DialContext(t.Context(), "tcp", net.JoinHostPort(host.Address.String(), "6443"))
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			conn, err := begin(raw)
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(cluster.Patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); os.IsTimeout(err) {
				t.Errorf("the server waits for ever: %v", err)
			}
		})
	}
}

// TestForgedHeaders pretends to be other users by headers that proxies of the API set, and sends sizes
// that no honest node has.
func TestForgedHeaders(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	attacker := on(c, c.Join(network, "agent-1").Host)
	const secrets = "/api/v1/namespaces/kube-system/secrets"
	for _, headers := range [][]string{
		{"X-Remote-User: admin", "X-Remote-Group: system:masters"},
		{"Impersonate-User: admin", "Impersonate-Group: system:masters"},
		{"X-Forwarded-For: 127.0.0.1", "X-Forwarded-Client-Cert: Subject=\"O=system:masters,CN=admin\"", "X-Forwarded-User: admin"},
	} {
		var args []string
		for _, header := range headers {
			args = append(args, "--header", header)
		}
		for _, who := range []credentials{{}, stolen("client-kubelet"), stolen("client-flannel")} {
			if status, body := attacker.curl(who, secrets, args...); status != http.StatusForbidden && status != http.StatusUnauthorized {
				t.Errorf("with headers %q and credentials %+v: got %d %s, want 401 or 403", headers, who, status, body)
			}
		}
	}

	t.Log("a join request that is too large")
	token := c.Server.Token()
	_, basic, _ := strings.Cut(token, "::")
	// The body fits into the buffers on the way: curl may not read the answer of a server that
	// closes the connection while curl sends.
	attacker.host.WriteFile("/run/large", `{"node": "`+strings.Repeat("a", 128<<10))
	status, body := attacker.curl(credentials{}, "/v1-kedge/join", "--user", basic, "--header", "Expect:", "--data-binary", "@/run/large")
	if status != http.StatusBadRequest || !strings.Contains(body, "too large") {
		t.Errorf("the server answers %d %s", status, body)
	}
	if output, err := attacker.kubectl(stolen("client-kubelet"), "", "get", "node", "agent-1", "-o", "name"); err != nil || output != "node/agent-1" {
		t.Errorf("an honest node gets %s, %v", output, fmt.Sprint(err))
	}
}
