package k3ssetups

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil/s3"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/registry"
)

// testHAMySQL starts two servers with the same file.
func testHAMySQL(t *testing.T) {
	network := harness.NewNetwork(t)
	name := startMySQL(t, network).Address.String() + " mysql.example.com"
	var c *cluster.Cluster
	for _, server := range []string{"server-1", "server-2"} {
		h := newHost(t, network, server, "ha-mysql")
		know(h, name, h.Address.String()+" k3s.example.com")
		c = start(t, h, "ha-mysql")
		c.Server.WaitReady()
		if taints := get(c, ".spec.taints"); !strings.Contains(taints, "CriticalAddonsOnly") {
			t.Errorf("the node has the taints %s", taints)
		}
		c.Kubectl("--server=https://k3s.example.com:6443", "get", "nodes")
	}
	if nodes := c.Kubectl("get", "nodes", "-o", "name"); nodes != "node/server-1\nnode/server-2" {
		t.Errorf("the nodes are %s", nodes)
	}
}

// startMySQL starts a MariaDB with the user of the set-up, on a host of its own.
func startMySQL(t *testing.T, network *harness.Network) *harness.Host {
	t.Helper()
	harness.Need(t, "mariadb-server-core", "mariadb-client-core")
	const nobody = 65534 // it refuses to run as root
	h := network.NewHost(t, "mysql")
	folder := h.Scratch("mysql")
	if err := os.Chown(folder, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	// The folder above all scratch folders is only for root.
	if err := os.Chmod(filepath.Dir(folder), 0o755); err != nil {
		t.Fatal(err)
	}
	command := func(name string, args ...string) *harness.Cmd {
		cmd := h.Command(t.Context(), name, append([]string{"--no-defaults"}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Dir = "/"
		return cmd
	}
	data, socket := filepath.Join(folder, "data"), filepath.Join(folder, "socket")
	if output, err := command("mariadb-install-db", "--tmpdir="+folder, "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if err := command("/usr/sbin/mariadbd", "--tmpdir="+folder, "--datadir="+data, "--socket="+socket, "--bind-address=0.0.0.0", "--skip-name-resolve").Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, cluster.Patience, "MariaDB", func() error {
		_, err := command("mariadb", "--user=root", "--socket="+socket, "-e", "CREATE USER IF NOT EXISTS k3s IDENTIFIED BY 'PASSWORD'; GRANT ALL ON k3s.* TO k3s").Output()
		return err
	})
	return h
}

// testS3 saves a snapshot to an S3 that has an authority which the host trusts.
func testS3(t *testing.T) {
	network := harness.NewNetwork(t)
	elsewhere := network.NewHost(t, "s3")
	certificate, key := cluster.Certificate(t, "s3.example.com")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	store := &s3.Server{Bucket: "backups", AccessKey: "KEY"}
	server := &http.Server{Handler: store}
	listener := tls.NewListener(elsewhere.Listen(":443"), &tls.Config{Certificates: []tls.Certificate{pair}})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })

	h := newHost(t, network, "server-1", "s3", elsewhere.Address.String()+" s3.example.com")
	h.WriteFile("/etc/ssl/of-the-company.pem", string(certificate))
	h.Setenv("SSL_CERT_FILE", "/etc/ssl/of-the-company.pem")
	c := start(t, h, "s3")
	c.Server.WaitReady()
	output, err := cluster.Snapshot(h, "save", "--name=now")
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if keys := store.Keys(); !slices.ContainsFunc(keys, func(key string) bool { return strings.HasPrefix(key, "edge/now-") }) {
		t.Errorf("in S3 are %q", keys)
	}
}

// testAirGap has no way to the Internet. All images come from a registry with an authority and a password
// of its own.
func testAirGap(t *testing.T) {
	network := harness.NewNetwork(t)
	r := registry.Start(t, network, "registry.example.com")
	r.Add(t, "library/app:1", registry.Archive(t, "docker.io/library/app:1"))
	h := newHost(t, network, "server-1", "air-gap", r.Host.Address.String()+" registry.example.com")
	h.WriteFile("/etc/rancher/k3s/registry.crt", string(r.Authority))
	h.WriteFile("/etc/rancher/k3s/registries.yaml", `
mirrors:
  docker.io:
    endpoint:
      - "https://registry.example.com:5000"
configs:
  "registry.example.com:5000":
    auth:
      username: reader
      password: first
    tls:
      ca_file: /etc/rancher/k3s/registry.crt
`)
	h.WriteFile("/etc/k3s-resolv.conf", "nameserver 192.0.2.53\n")
	h.WriteFile("/var/lib/rancher/credentialprovider/config.yaml", `
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: of-the-company
  matchImages: ["*.cloud.example.com"]
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`)
	const plugin = "/var/lib/rancher/credentialprovider/bin/of-the-company"
	h.WriteFile(plugin, "#!/bin/sh\nexit 1\n")
	if err := os.Chmod(h.Path(plugin), 0o755); err != nil {
		t.Fatal(err)
	}
	c := start(t, h, "air-gap")
	c.Server.WaitReady()
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: app}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "app:1"}]
`)
	c.Pod("app")
	if r.Pulled("library/app", "blobs") == 0 {
		t.Error("the registry was not asked")
	}
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: none}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "none:1"}]
`)
	c.Told(cluster.Namespace, "none", "docker.io/library/none:1: not found")
}
