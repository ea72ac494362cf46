// Package certificates tests servers and an agent whose certificates expire while they run: all
// certificates are renewed, and nothing is restarted. Then the authorities are replaced by hand.
package certificates

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	serverTLS = "/var/lib/kedge/server/tls"
	agentTLS  = "/var/lib/kedge/agent/tls"
	// life is how long the certificates are valid. It is enough for a start on a busy machine.
	// They are renewed in their last quarter.
	life = 6 * time.Minute
)

// TestRenewed checks that two etcd members and an agent keep working after every certificate with which
// they started has expired.
func TestRenewed(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first := cluster.NewHost(t, network, "server-1").StartServer(t, "--cluster-init")
	first.WaitReady()
	c := cluster.Of(t, first)
	second := network.NewHost(t, "server-2").StartServer(t, "--server=https://"+first.Host.Address.String()+":6443", "--token="+first.Token())
	second.WaitReady()
	agent := c.Join(network, "agent-1")
	pod := c.RunWeb("web", "agent-1")
	before := c.Containers()
	served := serve(t, agent.Host, pod.Status.PodIP)

	agent.Terminate()
	second.Terminate()
	first.Terminate()
	now := time.Now()
	end := now.Add(life)
	for _, host := range []*harness.Host{first.Host, second.Host, agent.Host} {
		cluster.Redate(t, host, first.Host, now, end)
	}
	first.Start()
	second.Start()
	agent.Start()
	first.WaitReady()
	second.WaitReady()
	agent.WaitReady()
	c.Client = first.Client()
	hosts := []*harness.Host{first.Host, second.Host, agent.Host}
	for _, host := range hosts {
		if output, err := host.Kedge(t.Context(), "certificate", "check").CombinedOutput(); err == nil || !bytes.Contains(output, []byte("ends soon")) {
			t.Errorf("check on %s: %v\n%s", host.Name, err, output)
		}
	}

	time.Sleep(time.Until(end) + time.Second)
	c.Client = first.Client()
	wantFresh := func() {
		t.Helper()
		for _, host := range hosts {
			if output, err := host.Kedge(t.Context(), "certificate", "check").CombinedOutput(); err != nil {
				t.Errorf("check on %s: %v\n%s", host.Name, err, output)
			}
			for _, port := range listening(host) {
				if cert := shown(t, host, port); time.Until(cert.NotAfter) < 300*24*time.Hour {
					t.Errorf("at %s port %s shows a certificate until %s", host.Name, port, cert.NotAfter)
				}
			}
		}
	}
	works := func(name string) {
		t.Helper()
		for _, host := range hosts[:2] {
			for _, args := range [][]string{{"exec", "web", "--", "/testserver", "fetch", "http://127.0.0.1:" + cluster.WebPort}, {"logs", "web"}} {
				if output, err := host.Kedge(t.Context(), append([]string{"kubectl"}, args...)...).CombinedOutput(); err != nil {
					t.Errorf("kubectl %v by %s: %v\n%s", args, host.Name, err, output)
				}
			}
		}
		c.RunWeb(name, "agent-1")
		c.Kubectl("delete", "pod", name)
	}
	wantFresh()
	works("renewed")
	c.WantSameContainers(before)
	for _, host := range hosts {
		c.WaitNode(host.Name, "True")
	}
	// It connects to the member that has not been restarted.
	second.Restart()

	rotate := func(host *harness.Host) {
		t.Helper()
		var old [][]byte
		for _, port := range listening(host) {
			old = append(old, shown(t, host, port).RawSubjectPublicKeyInfo)
		}
		output, err := host.Kedge(t.Context(), "certificate", "rotate").CombinedOutput()
		if err != nil || !strings.Contains(string(output), "serving-kubelet.crt") {
			t.Errorf("rotate on %s: %v\n%s", host.Name, err, output)
		}
		for i, port := range listening(host) {
			harness.Eventually(t, cluster.Patience, "port "+port+" of "+host.Name+" to show a new key", func() error {
				if bytes.Equal(shown(t, host, port).RawSubjectPublicKeyInfo, old[i]) {
					return fmt.Errorf("it is the old one")
				}
				return nil
			})
		}
	}
	for _, host := range hosts {
		rotate(host)
	}
	c.Client = first.Client()
	wantFresh()
	works("rotated")
	second.Restart()
	c.WantSameContainers(before)
	served()
	for _, log := range []string{first.Log(), agent.Log()} {
		if n := strings.Count(log, " starts"); n != 2 {
			t.Errorf("kedge has started %d times, and was 2 times:\n%s", n, log)
		}
	}
}

// listening returns the ports at which a host shows certificates.
func listening(host *harness.Host) []string {
	if host.Name == "agent-1" {
		return []string{"10250"}
	}
	return []string{"6443", "10250", "2380"}
}

// shown returns the certificate that a port shows. The port may require a client certificate, and
// end the connection without one.
func shown(t *testing.T, host *harness.Host, port string) *x509.Certificate {
	t.Helper()
	var cert *x509.Certificate
	harness.Eventually(t, cluster.Patience, "port "+port+" of "+host.Name, func() error {
		conn, err := host.DialContext(t.Context(), "tcp", net.JoinHostPort(host.Address.String(), port))
		if err != nil {
			return err
		}
		defer conn.Close()
		client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
			cert = state.PeerCertificates[0]
			return nil
		}})
		if err := client.HandshakeContext(t.Context()); cert == nil {
			return err
		}
		return nil
	})
	return cert
}

// serve sends requests to a pod on a host until the returned function is called, which checks that
// each was answered.
func serve(t *testing.T, host *harness.Host, ip string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	type result struct {
		answers int
		faults  []error
	}
	results := make(chan result, 1)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: host.DialContext}}
	go func() {
		var r result
		for ctx.Err() == nil {
			response, err := client.Get("http://" + net.JoinHostPort(ip, cluster.WebPort))
			if err == nil {
				_, err = io.Copy(io.Discard, response.Body)
				response.Body.Close()
			}
			if err != nil {
				r.faults = append(r.faults, err)
			}
			r.answers++
			time.Sleep(200 * time.Millisecond)
		}
		results <- r
	}()
	t.Cleanup(cancel)
	return func() {
		t.Helper()
		cancel()
		if r := <-results; len(r.faults) > 0 {
			t.Errorf("of %d requests to the pod %d failed: %v", r.answers, len(r.faults), r.faults[0])
		}
	}
}
