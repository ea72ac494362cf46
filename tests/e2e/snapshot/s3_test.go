package snapshot

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil/s3"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// storeName is the name of the S3, which only the proxy can resolve.
const storeName = "s3.test"

// store is an S3 on a host of its own. It wants a session token, and can be slow to take objects.
type store struct {
	s3.Server
	host *harness.Host

	mu sync.Mutex
	// hosts are the names by which it was called.
	hosts []string
	// stalled is true while it takes no objects.
	stalled bool
}

// ServeHTTP implements http.Handler.
func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(r.Host, ":")
	s.mu.Lock()
	stalled := s.stalled && r.Method == http.MethodPut
	if !slices.Contains(s.hosts, name) {
		s.hosts = append(s.hosts, name)
	}
	s.mu.Unlock()
	if stalled {
		// The server notices that the client has gone when it has read the body.
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		return
	}
	if r.Header.Get("X-Amz-Security-Token") != "for an hour" {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>no session token</Message></Error>")
		return
	}
	if bucket, ok := strings.CutSuffix(name, "."+storeName); ok {
		r.URL.Path = "/" + bucket + r.URL.Path
	}
	s.Server.ServeHTTP(w, r)
}

// stall makes the store take no objects, or take them again.
func (s *store) stall(stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = stalled
}

// calledAs returns the names by which the store was called since the last time.
func (s *store) calledAs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	hosts := s.hosts
	s.hosts = nil
	return hosts
}

// proxy connects its clients with the store, whatever name they ask for, if they know the password.
type proxy struct {
	store *store
	host  *harness.Host

	mu    sync.Mutex
	asked []string
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	if r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("edge:hush")) {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	target, err := p.host.DialContext(r.Context(), "tcp", p.store.host.Address.String()+":9443")
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer target.Close()
	w.WriteHeader(http.StatusOK)
	client, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	go func() {
		_, _ = io.Copy(target, buffered)
		target.Close()
	}()
	_, _ = io.Copy(client, target)
}

// times returns how often the proxy was asked.
func (p *proxy) times() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// TestS3OfK3s sends snapshots to an S3 as users of k3s configure it: through a proxy, with a session token,
// and with a number of snapshots and a time limit of its own.
func TestS3OfK3s(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	certificate, key := cluster.Certificate(t, storeName)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &store{Server: s3.Server{Bucket: bucket, AccessKey: "user"}, host: network.NewHost(t, "store")}
	p := &proxy{store: s, host: network.NewHost(t, "proxy")}
	secure := &http.Server{Handler: s}
	go func() {
		_ = secure.Serve(tls.NewListener(s.host.Listen(":9443"), &tls.Config{Certificates: []tls.Certificate{pair}}))
	}()
	t.Cleanup(func() { secure.Close() })
	plain := &http.Server{Handler: p}
	go func() { _ = plain.Serve(p.host.Listen(":3128")) }()
	t.Cleanup(func() { plain.Close() })

	host := cluster.NewHost(t, network, "server-1")
	host.WriteFile("/etc/kedge/s3.crt", string(certificate))
	base := fmt.Sprintf(`
etcd-s3: true
etcd-s3-endpoint: %s:9443
etcd-s3-bucket: %s
etcd-s3-access-key: user
etcd-s3-secret-key: secret
etcd-s3-proxy: http://edge:hush@%s:3128
etcd-s3-timeout: 3s
`, storeName, bucket, p.host.Address)
	configure := func(more string) { host.WriteFile("/etc/kedge/config.yaml", base+more) }
	again := func(c *cluster.Cluster, more string) {
		c.Server.Terminate()
		configure(more)
		start(c)
	}

	t.Log("the proxy and the path of the bucket")
	const trusted, token = "etcd-s3-endpoint-ca: /etc/kedge/s3.crt\n", "etcd-s3-session-token: for an hour\n"
	configure(trusted + token + "etcd-s3-bucket-lookup-type: path\n")
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	name := save(c, "first")
	if keys := s.Keys(); !slices.Equal(keys, []string{name}) {
		t.Errorf("in S3 are %q", keys)
	}
	if p.times() == 0 || slices.ContainsFunc(p.asked, func(asked string) bool { return asked != "CONNECT "+storeName+":9443" }) {
		t.Errorf("the proxy was asked for %q", p.asked)
	}
	if hosts := s.calledAs(); !slices.Equal(hosts, []string{storeName}) {
		t.Errorf("the store was called %q", hosts)
	}
	if strings.Contains(server.Log(), "hush") {
		t.Error("the log has the password of the proxy")
	}

	t.Log("the time limit")
	s.stall(true)
	refused(c, []string{"is saved on this host, but could not be sent to S3", "s3-timeout"}, "save")
	s.stall(false)

	t.Log("no session token")
	again(c, trusted)
	refused(c, []string{"could not be sent to S3", "s3-session-token"}, "save")

	t.Log("the bucket in the name of the host")
	before := p.times()
	again(c, token+"etcd-s3-bucket-lookup-type: dns\netcd-s3-skip-ssl-verify: true\n")
	save(c, "second")
	if hosts := s.calledAs(); !slices.Contains(hosts, bucket+"."+storeName) {
		t.Errorf("the store was called %q", hosts)
	}
	if p.times() == before {
		t.Error("the proxy was not asked")
	}

	t.Log("a schedule that keeps other numbers in S3 and on the host")
	again(c, trusted+token+"etcd-snapshot-schedule-cron: \"@every 1s\"\netcd-snapshot-retention: 5\netcd-s3-retention: 2\n")
	first := scheduledIn(s)
	c.Eventually("two new snapshots in S3 and five on the host", func() error {
		there, here := scheduledIn(s), scheduledOn(c)
		if len(there) < 1 || len(there) > 3 || slices.ContainsFunc(there, func(name string) bool { return slices.Contains(first, name) }) || len(here) < 5 {
			return fmt.Errorf("in S3 are %q, and here %q", there, here)
		}
		return nil
	})

	t.Log("all of it in a Secret with k3s's keys")
	c.Server.Terminate()
	host.WriteFile("/etc/kedge/config.yaml", "etcd-s3: true\netcd-s3-config-secret: k3s-etcd-snapshot-s3-config\ndisable-snapshots: true\n")
	start(c)
	c.Kubectl("create", "secret", "generic", "k3s-etcd-snapshot-s3-config", "--namespace=kube-system", "--type=etcd.k3s.cattle.io/s3-config-secret",
		"--from-literal=etcd-s3-endpoint="+storeName+":9443", "--from-literal=etcd-s3-bucket="+bucket, "--from-literal=etcd-s3-folder=of/a-secret",
		"--from-literal=etcd-s3-access-key=user", "--from-literal=etcd-s3-secret-key=secret", "--from-literal=etcd-s3-session-token=for an hour",
		"--from-literal=etcd-s3-proxy=http://edge:hush@"+p.host.Address.String()+":3128", "--from-literal=etcd-s3-timeout=1m",
		"--from-literal=etcd-s3-skip-ssl-verify=false", "--from-literal=etcd-s3-insecure=false", "--from-literal=etcd-s3-region=",
		"--from-literal=etcd-s3-endpoint-ca-name=", "--from-file=etcd-s3-endpoint-ca=/etc/kedge/s3.crt")
	third := save(c, "third")
	if keys := s.Keys(); !slices.Contains(keys, "of/a-secret/"+third) {
		t.Errorf("in S3 are %q", keys)
	}
}

// scheduledIn returns the names of the snapshots by schedule that are in a store.
func scheduledIn(s *store) []string {
	return slices.DeleteFunc(s.Keys(), func(key string) bool { return !strings.HasPrefix(key, "scheduled-") })
}

// scheduledOn returns the names of the snapshots by schedule that are on the server's host.
func scheduledOn(c *cluster.Cluster) (names []string) {
	c.Helper()
	for _, location := range strings.Fields(c.Kubectl("get", "snapshotfiles", "-o", `jsonpath={.items[*].spec.location}`)) {
		if path, ok := strings.CutPrefix(location, "file://"+folder+"/"); ok && strings.HasPrefix(path, "scheduled-") {
			names = append(names, path)
		}
	}
	return names
}
