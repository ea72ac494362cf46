package bench

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// nginxConf is nginx in front of a pod, with what a user would set: connections to the pod are kept.
const nginxConf = `
worker_processes 2;
pid /tmp/nginx.pid;
error_log /tmp/nginx.log;
events { worker_connections 4096; }
http {
	access_log off;
	keepalive_requests 100000000;
	client_body_temp_path /tmp/nginx-body;
	proxy_temp_path /tmp/nginx-proxy;
	fastcgi_temp_path /tmp/nginx-fastcgi;
	uwsgi_temp_path /tmp/nginx-uwsgi;
	scgi_temp_path /tmp/nginx-scgi;
	upstream pod { server %[1]s; keepalive 64; keepalive_requests 100000000; }
	server {
		listen 8081;
		listen 8444 ssl http2;
		server_name web.example.com;
		ssl_certificate /tmp/tls.crt;
		ssl_certificate_key /tmp/tls.key;
		location / {
			proxy_pass http://pod;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_set_header Host $host;
			proxy_set_header X-Forwarded-For $remote_addr;
		}
	}
}
`

// TestGateway measures the gateway beside nginx, in front of the same pod. It fails only if something does
// not work.
func TestGateway(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "nghttp2-client", "nginx-light")
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	origin, err := newOrigin(repository)
	if err != nil {
		t.Fatal(err)
	}
	network := harness.NewNetwork(t)
	g := &gatewayBench{
		Cluster: cluster.Start(t, network), client: network.NewHost(t, "client-1"),
		report: &gatewayReport{origin: origin, Rounds: map[string]map[string][]gatewayResult{}, Memory: map[string]float64{}},
	}
	pod := g.RunWeb("web", g.Server.Host.Name)
	g.ServeWeb()
	g.readMemory("nothing")
	g.startNginx(net.JoinHostPort(pod.Status.PodIP, cluster.WebPort))
	g.serve()
	g.readMemory("one Ingress")
	g.rounds(frontNginx, frontGateway)
	g.readMemory("after load")
	g.report.Change = g.changes()
	g.fill()
	g.readMemory("1,000 routes")
	g.rounds(frontFilled)
	g.report.ChangeFilled = g.changes()
	g.Kubectl("delete", "ingress", "--all")
	g.Kubectl("delete", "httproute,gateway", "--all", "--wait=false")
	g.readMemory("all removed")
	fmt.Print(g.report.Table())
	if err := writeJSON(filepath.Join(repository, gatewayFile), g.report); err != nil {
		t.Fatal(err)
	}
}

// gatewayBench is a node with a gateway and nginx, and a client.
type gatewayBench struct {
	*cluster.Cluster
	client           *harness.Host
	certificate, key []byte
	report           *gatewayReport
}

// startNginx runs nginx on the node.
func (g *gatewayBench) startNginx(pod string) {
	g.Helper()
	g.certificate, g.key = cluster.Certificate(g.T, gatewayHost)
	host := g.Server.Host
	host.WriteFile("/tmp/tls.crt", string(g.certificate))
	host.WriteFile("/tmp/tls.key", string(g.key))
	host.WriteFile("/tmp/nginx.conf", fmt.Sprintf(nginxConf, pod))
	command := host.Command(g.Context(), "/usr/sbin/nginx", "-c", "/tmp/nginx.conf", "-g", "daemon off;")
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		g.Fatalf("start nginx: %v", err)
	}
}

// serve makes the Ingress.
func (g *gatewayBench) serve() {
	g.Helper()
	g.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
type: kubernetes.io/tls
metadata: {name: web-tls}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  tls: [{hosts: [%[3]s], secretName: web-tls}]
  rules:
  - host: %[3]s
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`, base64.StdEncoding.EncodeToString(g.certificate), base64.StdEncoding.EncodeToString(g.key), gatewayHost))
	for _, front := range []string{frontNginx, frontGateway} {
		for _, protocol := range gatewayProtocols {
			g.Eventually(front+" to answer "+protocol, func() error {
				_, err := g.load(front, protocol, "1")
				return err
			})
		}
	}
}

// fill makes routes with a host name each.
func (g *gatewayBench) fill() {
	g.Helper()
	var text strings.Builder
	text.WriteString(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: filled}
spec:
  gatewayClassName: kedge
  listeners: [{name: http, port: 80, protocol: HTTP}]
`)
	for i := range gatewayRoutes {
		fmt.Fprintf(&text, `---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web-%[1]d}
spec:
  parentRefs: [{name: filled}]
  hostnames: [web-%[1]d.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /a}}, {path: {type: Exact, value: /b}}]
    backendRefs: [{name: web, port: 80}]
`, i)
	}
	g.Apply(text.String())
	g.Eventually("the last route to be served", func() error {
		status, _, err := g.get(fmt.Sprintf("http://web-%d.example.com/a", gatewayRoutes-1))
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("it answers %d", status)
		}
		return err
	})
}

// rounds measures fronts in turns.
func (g *gatewayBench) rounds(fronts ...string) {
	g.Helper()
	for range gatewayRounds {
		for _, protocol := range gatewayProtocols {
			for _, front := range fronts {
				result, err := g.load(front, protocol, gatewaySeconds)
				if err != nil {
					g.Fatalf("measure %s, %s: %v", front, protocol, err)
				}
				fmt.Printf("%s, %s: %+v\n", front, protocol, result)
				if g.report.Rounds[protocol] == nil {
					g.report.Rounds[protocol] = map[string][]gatewayResult{}
				}
				g.report.Rounds[protocol][front] = append(g.report.Rounds[protocol][front], result)
			}
		}
	}
}

// load runs h2load on the client.
func (g *gatewayBench) load(front, protocol, seconds string) (gatewayResult, error) {
	const log = "/tmp/h2load.log"
	_ = os.Remove(g.client.Path(log))
	plain, secure := "80", "443"
	if front == frontNginx {
		plain, secure = "8081", "8444"
	}
	args := []string{"--duration=" + seconds, "--warm-up-time=1", "--clients=32", "--threads=1", "--log-file=" + log}
	url := "http://" + gatewayHost + ":" + plain + "/"
	switch protocol {
	case "HTTP/1.1":
		args = append(args, "--h1")
	case "HTTP/1.1 with TLS":
		args, url = append(args, "--h1"), "https://"+gatewayHost+":"+secure+"/"
	default:
		args, url = append(args, "--max-concurrent-streams=4"), "https://"+gatewayHost+":"+secure+"/"
	}
	args = append(args, "--connect-to="+g.Server.Host.Address.String(), url)
	ctx, cancel := context.WithTimeout(g.Context(), time.Minute)
	defer cancel()
	output, err := g.client.Command(ctx, "h2load", args...).CombinedOutput()
	if err != nil {
		return gatewayResult{}, fmt.Errorf("h2load: %w: %s", err, output)
	}
	for _, want := range []string{" 0 failed, 0 errored, 0 timeout", " 0 3xx, 0 4xx, 0 5xx"} {
		if !strings.Contains(string(output), want) {
			return gatewayResult{}, fmt.Errorf("h2load: some requests failed: %s", output)
		}
	}
	file, err := os.Open(g.client.Path(log))
	if err != nil {
		return gatewayResult{}, err
	}
	defer file.Close()
	return readLoad(file)
}

// changes changes a route ten times and returns the seconds from the API's answer until each is in force.
func (g *gatewayBench) changes() (seconds []float64) {
	g.Helper()
	for i := range 10 {
		name := fmt.Sprintf("change-%d.example.com", i)
		g.Kubectl("patch", "ingress", "web", "--type=json", "-p", fmt.Sprintf(
			`[{"op":"add","path":"/spec/rules/-","value":{"host":%q,"http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"web","port":{"number":80}}}}]}}}]`, name))
		began := time.Now()
		for {
			status, _, err := g.get("http://" + name + "/")
			if err == nil && status == http.StatusOK {
				break
			}
			if time.Since(began) > time.Minute {
				g.Fatalf("the change is not in force after a minute: %d, %v", status, err)
			}
		}
		seconds = append(seconds, time.Since(began).Seconds())
	}
	return seconds
}

// get asks the gateway once.
func (g *gatewayBench) get(url string) (status int, body string, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return g.client.DialContext(ctx, network, net.JoinHostPort(g.Server.Host.Address.String(), "80"))
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// readMemory notes kedge's memory after it has been at rest.
func (g *gatewayBench) readMemory(step string) {
	g.Helper()
	time.Sleep(gatewayRest)
	// Only kedge itself: nginx runs on the same host.
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.Server.Process().Pid))
	if err != nil {
		g.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	var kib float64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		g.Fatalf("read memory of kedge: %v", err)
	}
	g.report.Memory[step] = kib * 1024
	fmt.Printf("anonymous memory with %s: %.1f MiB\n", step, kib/1024)
}

// gatewayRest is how long kedge rests before its memory is read.
const gatewayRest = 90 * time.Second
