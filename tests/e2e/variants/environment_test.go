package variants

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestUnfriendlyHost runs on a host with many obstacles: a proxy that nobody can reach, a
// resolv.conf with only a local resolver, and that resolver on port 53 of all addresses, like a
// Pi-hole. Readiness is reported to systemd.
func TestUnfriendlyHost(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := newHostOn(t, network, "server-1")
	neighbour := network.NewHost(t, "neighbour")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		host.Setenv(name, "http://192.0.2.1:3128")
	}
	host.WriteFile("/etc/resolv.conf", "search lan.example\nnameserver 127.0.0.53\n")
	resolver := &dns.Server{PacketConn: host.ListenPacket("udp", "0.0.0.0:53"), Handler: dns.HandlerFunc(outside)}
	go func() { _ = resolver.ActivateAndServe() }()
	notified := listenNotify(t, host)

	c := start(t, host)
	c.works()
	c.eventually("READY=1", func() error { return told(notified, "READY=1") })

	t.Run("names outside the cluster", func(t *testing.T) {
		c := c.on(t)
		for _, name := range []string{"www.outside.example", "printer"} {
			if got := c.in("client", "/testserver", "lookup", "host", name); got != "192.0.2.7" {
				t.Errorf("a pod resolves %s to %q", name, got)
			}
		}
		c.kubectl("run", "host-dns", "--image="+busybox, "--restart=Never", `--overrides={"spec":{"dnsPolicy":"Default"}}`,
			"--command", "--", "sleep", "1000")
		c.pod("host-dns")
		if conf := c.in("host-dns", "cat", "/etc/resolv.conf"); strings.Contains(conf, "127.") || !strings.Contains(conf, "nameserver") || !strings.Contains(conf, "lan.example") {
			t.Errorf("a pod with the host's DNS has the resolv.conf\n%s", conf)
		}
	})

	t.Run("DNS is for the node's pods alone", func(t *testing.T) {
		node := host.Address.String()
		if err := query(host, "udp", net.JoinHostPort(node, "10053")); err != nil {
			t.Errorf("the node itself: %v", err)
		}
		// The neighbour gets a route to the addresses of pods and Services, as a real one could have.
		for _, cidr := range []string{"10.42.0.0/16", "10.43.0.0/16"} {
			run(t, neighbour, harness.Busybox(t), "ip", "route", "add", cidr, "via", node)
		}
		gateway := c.on(t).kubectl("get", "node", host.Name, "-o", "jsonpath={.spec.podCIDR}")
		gateway = strings.Replace(gateway, ".0/24", ".1", 1)
		for _, network := range []string{"udp", "tcp"} {
			for _, address := range []string{node + ":10053", gateway + ":10053", "10.43.0.10:53"} {
				if err := query(neighbour, network, address); err == nil {
					t.Errorf("a neighbour gets an answer from %s by %s", address, network)
				}
			}
		}
		if err := query(neighbour, "udp", net.JoinHostPort(node, "53")); err != nil {
			t.Errorf("the host's own resolver does not answer a neighbour: %v", err)
		}
	})

	t.Run("a webhook in a pod", func(t *testing.T) {
		c := c.on(t)
		ca := authority(t, "webhook", nil)
		pair := serverCertificate(t, ca, "hook.default.svc")
		c.apply(fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: hook}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: v1
kind: Pod
metadata: {name: hook, labels: {app: hook}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: tls, secret: {secretName: hook}}]
  containers:
  - name: main
    image: %q
    args: [webhook, /tls/tls.crt, /tls/tls.key]
    volumeMounts: [{name: tls, mountPath: /tls}]
    readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: hook}
spec: {selector: {app: hook}, ports: [{port: 443, targetPort: 8443}]}
`, base64.StdEncoding.EncodeToString([]byte(pair.certPEM())), base64.StdEncoding.EncodeToString([]byte(pair.keyPEM(t))), testserver))
		c.pod("hook")
		c.apply(fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook}
webhooks:
- name: hook.test.kedge.dev
  clientConfig: {caBundle: %s, service: {namespace: default, name: hook, path: /validate}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  objectSelector: {matchLabels: {refuse: "yes"}}
  admissionReviewVersions: [v1]
  sideEffects: None
`, base64.StdEncoding.EncodeToString([]byte(ca.certPEM()))))
		c.eventually("the webhook to refuse, asked past the proxy", func() error {
			cmd := host.Kedge(c.ctx, "kubectl", "create", "--dry-run=server", "-f", "-")
			cmd.Stdin = strings.NewReader("{apiVersion: v1, kind: ConfigMap, metadata: {name: refused, labels: {refuse: \"yes\"}}}")
			output, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(output), "the webhook refuses") {
				return fmt.Errorf("answer %q, %v", output, err)
			}
			return nil
		})
	})

	c.server.Terminate()
	c.eventually("STOPPING=1", func() error { return told(notified, "STOPPING=1") })
}

// listenNotify plays systemd's part for the host: see sd_notify(3).
func listenNotify(t *testing.T, host *harness.Host) <-chan string {
	t.Helper()
	const path = "/run/systemd-notify.sock"
	conn := host.ListenPacket("unixgram", path)
	host.Setenv("NOTIFY_SOCKET", path)
	messages := make(chan string, 100)
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, _, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			messages <- string(buffer[:n])
		}
	}()
	return messages
}

// told checks that the next message has the line want.
func told(messages <-chan string, want string) error {
	select {
	case message := <-messages:
		for line := range strings.Lines(message) {
			if strings.TrimSpace(line) == want {
				return nil
			}
		}
		return fmt.Errorf("systemd was told %q", message)
	default:
		return errors.New("systemd was told nothing")
	}
}

// outside answers for names outside the cluster.
func outside(w dns.ResponseWriter, request *dns.Msg) {
	answer := new(dns.Msg).SetReply(request)
	question := request.Question[0]
	switch name := question.Name; {
	case name != "www.outside.example." && name != "printer.lan.example.":
		answer.Rcode = dns.RcodeNameError
	case question.Qtype == dns.TypeA:
		answer.Answer = append(answer.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 7)})
	}
	_ = w.WriteMsg(answer)
}

// query asks a name server from a host for a name that it must know.
func query(from *harness.Host, network, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	plain, err := from.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	conn := &dns.Conn{Conn: plain}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	if err := conn.WriteMsg(new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)); err != nil {
		return err
	}
	_, err = conn.ReadMsg()
	return err
}
