// Package gateway tests Gateways and Ingresses over hosts of their own and a client outside of the
// cluster.
package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// world is a cluster of two nodes with a client outside.
type world struct {
	*cluster.Cluster
	client *harness.Host
	nodes  []*harness.Host
	agent  *harness.Agent
}

// newWorld starts a server with args, an agent and a client.
func newWorld(t *testing.T, args ...string) *world {
	t.Helper()
	harness.Require(t)
	network := harness.NewNetwork(t)
	w := &world{Cluster: cluster.Start(t, network, args...), client: network.NewHost(t, "client-1")}
	w.agent = w.Join(network, "agent-1")
	w.nodes = []*harness.Host{w.Server.Host, w.agent.Host}
	return w
}

// addresses returns the addresses of the nodes.
func (w *world) addresses() (all []string) {
	for _, node := range w.nodes {
		all = append(all, node.Address.String())
	}
	return all
}

// web runs two pods on each node that answer with their name, and a Service for them.
func (w *world) web(name string) {
	w.Helper()
	w.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 10
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: %[1]s}}}
      containers:
      - name: main
        image: %[2]q
        args: [serve, "8080"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {app: %[1]s}
  ports: [{name: http, port: 80, targetPort: 8080}]
`, name, image.TestserverName))
	w.Kubectl("rollout", "status", "deployment/"+name, "--timeout="+cluster.Patience.String())
}

// certificate makes a Secret with a certificate for a host name, and returns the authority to trust.
func (w *world) certificate(secret, name string) *x509.CertPool {
	w.Helper()
	certificate, key := cluster.Certificate(w.T, name)
	w.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: %s}
data: {tls.crt: %s, tls.key: %s}
`, secret, base64.StdEncoding.EncodeToString(certificate), base64.StdEncoding.EncodeToString(key)))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return roots
}

// question is a request of the client to an address of the gateway.
type question struct {
	address string // HOST:PORT to connect to
	url     string
	method  string
	headers map[string]string
	body    string
	roots   *x509.CertPool
	http2   bool
}

// answer is what a gateway said.
type answer struct {
	status  int
	body    string
	headers http.Header
	proto   string
}

// ask asks once.
func (w *world) ask(q question) (answer, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return w.client.DialContext(ctx, network, q.address)
		},
		TLSClientConfig:   &tls.Config{RootCAs: q.roots},
		ForceAttemptHTTP2: q.http2,
		DisableKeepAlives: true,
	}
	client := &http.Client{
		Transport: transport, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	method := q.method
	if method == "" {
		method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(w.Context(), method, q.url, strings.NewReader(q.body))
	if err != nil {
		return answer{}, err
	}
	for name, value := range q.headers {
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(body), response.Header, response.Proto}, err
}

// answers waits until the answer has the status and the words in its body.
func (w *world) answers(q question, status int, words ...string) answer {
	w.Helper()
	var got answer
	w.Eventually(fmt.Sprintf("%s at %s to answer %d %v", q.url, q.address, status, words), func() (err error) {
		if got, err = w.ask(q); err != nil {
			return err
		}
		if got.status != status {
			return fmt.Errorf("it answers %d: %s", got.status, got.body)
		}
		for _, word := range words {
			if !strings.Contains(got.body, word) {
				return fmt.Errorf("it answers %s", got.body)
			}
		}
		return nil
	})
	return got
}

// refuses waits until nothing listens at an address.
func (w *world) refuses(address string) {
	w.Helper()
	w.Eventually(address+" to refuse connections", func() error {
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		conn, err := w.client.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil
		}
		conn.Close()
		return errors.New("it accepts one")
	})
}

// raw writes bytes to an address and returns the first bytes of the answer.
func (w *world) raw(address string, text []byte) (string, error) {
	conn, err := w.client.DialContext(w.Context(), "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	go func() { _, _ = conn.Write(text) }() // A server that refuses may close first.
	var got bytes.Buffer
	_, err = io.Copy(&got, io.LimitReader(conn, 4096))
	if got.Len() > 0 {
		err = nil
	}
	return got.String(), err
}
