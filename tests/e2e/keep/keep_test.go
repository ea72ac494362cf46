// Package keep loses the box: the server's host is killed and its disk is gone. A new host with nothing but the
// recovery key becomes the same cluster.
package keep

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/testutil/s3"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// location is where the backup is, as the hosts see it. Each of them has the same bucket there.
const location = "s3://localhost:9443/backups/one"

const settings = `
backup: ` + location + `
backup-interval: 1s
s3-endpoint-ca: /etc/kedge/s3.crt
s3-access-key: user
s3-secret-key: secret
`

// restore is the command on a machine that has nothing.
var restore = []string{"restore", location, "--s3-endpoint-ca", "/etc/kedge/s3.crt", "--s3-access-key", "user", "--s3-secret-key", "secret"}

// bucket is the place of the backup, which outlives the hosts.
type bucket struct {
	t                *testing.T
	store            *s3.Server
	certificate, key []byte
}

func newBucket(t *testing.T) *bucket {
	certificate, key := cluster.Certificate(t, "localhost")
	return &bucket{t, &s3.Server{Bucket: "backups", AccessKey: "user"}, certificate, key}
}

// serve lets a host reach the bucket.
func (b *bucket) serve(host *harness.Host) {
	b.t.Helper()
	pair, err := tls.X509KeyPair(b.certificate, b.key)
	if err != nil {
		b.t.Fatal(err)
	}
	host.WriteFile("/etc/kedge/s3.crt", string(b.certificate))
	server := &http.Server{Handler: b.store}
	listener := tls.NewListener(host.Listen("127.0.0.1:9443"), &tls.Config{Certificates: []tls.Certificate{pair}})
	go func() { _ = server.Serve(listener) }()
	b.t.Cleanup(func() { server.Close() })
}

// run runs kedge on a host.
func run(t *testing.T, host *harness.Host, args ...string) string {
	t.Helper()
	output, err := host.Kedge(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kedge %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

// makeKey makes the recovery key as soon as the server can.
func makeKey(t *testing.T, host *harness.Host) (key string) {
	t.Helper()
	harness.Eventually(t, time.Minute, "the recovery key", func() error {
		command := host.Kedge(t.Context(), "backup", "key")
		var said strings.Builder
		command.Stderr = &said
		output, err := command.Output()
		if err != nil {
			return fmt.Errorf("%w: %s", err, said.String())
		}
		key = string(output)
		return nil
	})
	return key
}

// check returns what a restore would bring.
func check(t *testing.T, host *harness.Host, restore []string) (string, error) {
	said, err := host.Kedge(t.Context(), append(slices.Clone(restore), "--check")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kedge restore --check: %w: %s", err, said)
	}
	return string(said), nil
}

// inBackup waits until the newest state of the backup has an object.
func inBackup(c *cluster.Cluster, host *harness.Host, last *corev1.ConfigMap, restore []string) {
	c.Helper()
	wanted := revision(c.T, last.ResourceVersion)
	c.Eventually("the last object to be in the backup", func() error {
		said, err := check(c.T, host, restore)
		if err != nil {
			return err
		}
		_, text, _ := strings.Cut(said, "revision ")
		text, _, _ = strings.Cut(text, ":")
		if newest := revision(c.T, text); newest < wanted {
			return fmt.Errorf("the backup is at revision %d, not at %d", newest, wanted)
		}
		return nil
	})
}

// TestLoseTheBox kills a server right after a write was in the backup, and takes its disk. The restored server has its address, so an agent finds it, and
// the agent's pods run on.
func TestLoseTheBox(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	b := newBucket(t)
	host := cluster.NewHost(t, network, "server-1")
	b.serve(host)
	host.WriteFile("/etc/kedge/config.yaml", settings)
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Join(network, "agent-1")
	key := makeKey(t, host)
	c.RunWeb("there", "agent-1")
	c.Kubectl("create", "secret", "generic", "kept", "--from-literal=value=secret")
	before := c.Containers()
	c.Kubectl("create", "configmap", "last", "--from-literal=value=written")
	last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host.WriteFile("/opt/key", key)
	restore := append(slices.Clone(restore), "--key", "/opt/key")
	inBackup(c, host, last, restore)
	if said, err := host.Kedge(t.Context(), restore...).CombinedOutput(); err == nil || !strings.Contains(string(said), "stop it") {
		t.Errorf("restore while kedge runs: %v\n%s", err, said)
	}

	host.LoseDisk()
	server.Exited()
	cluster.Preload(t, host)
	b.serve(host)
	host.WriteFile("/opt/key", key)
	t.Log(run(t, host, restore...))
	server = host.StartServer(t)
	server.WaitReady()
	c = cluster.Of(t, server)
	c.WaitNode("agent-1", corev1.ConditionTrue)
	c.WantSameContainers(before)
	again, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(t.Context(), "last", metav1.GetOptions{})
	if err != nil || again.UID != last.UID {
		t.Errorf("the last object: %v", err)
	}
	secret, err := c.Client.CoreV1().Secrets(cluster.Namespace).Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || string(secret.Data["value"]) != "secret" {
		t.Errorf("the Secret: %v", err)
	}
	c.RunDeployment("more")
	harness.Eventually(t, 40*time.Second, "the backup to be verified", func() error {
		said, err := host.Kedge(t.Context(), "backup", "verify", "--key", "/opt/key").CombinedOutput()
		if err != nil || !strings.Contains(string(said), "objects of the backup are as in the cluster") {
			return fmt.Errorf("%w: %s", err, said)
		}
		t.Logf("%s", said)
		return nil
	})
	lookBack(t, c, host, last)
	if said := run(t, host, "status", "--local", "--components"); !strings.Contains(said, "backup: "+location+", ") {
		t.Errorf("kedge status says %s", said)
	}
}

// lookBack runs commands on the state in which the last object was new.
func lookBack(t *testing.T, c *cluster.Cluster, host *harness.Host, last *corev1.ConfigMap) {
	t.Helper()
	c.Kubectl("patch", "configmap", "last", "--type=merge", "-p={\"data\":{\"value\":\"changed\"}}")
	open := func(words ...string) (string, error) {
		opening := []string{"backup", "open", "--key", "/opt/key", "--at", last.ResourceVersion, "--", os.Getenv("KEDGE_BINARY"), "kubectl"}
		output, err := host.Kedge(t.Context(), append(opening, words...)...).CombinedOutput()
		return string(output), err
	}
	if said, err := open("get", "configmap", "last", "-o", "yaml"); err != nil || !strings.Contains(said, "value: written") || !strings.Contains(said, string(last.UID)) {
		t.Errorf("the state of before: %v\n%s", err, said)
	}
	c.Eventually("the history", func() error {
		said, err := host.Kedge(t.Context(), "backup", "history", "--key", "/opt/key", "configmap/last").CombinedOutput()
		for _, want := range []string{"created by kubectl-create", "changed by kubectl-patch", `.data.value: "written" -> "changed"`} {
			if err != nil || !strings.Contains(string(said), want) {
				return fmt.Errorf("%w: %s, want %q", err, said, want)
			}
		}
		t.Logf("%s", said)
		return nil
	})
	c.Kubectl("delete", "configmap", "last")
	c.Eventually("who has deleted it", func() error {
		said, err := host.Kedge(t.Context(), "backup", "history", "--key", "/opt/key", "configmap/last").CombinedOutput()
		if err != nil || !strings.Contains(string(said), "deleted by kedge-admin") {
			return fmt.Errorf("%w: %s", err, said)
		}
		return nil
	})
	if said, err := open("delete", "configmap", "last"); err == nil || !strings.Contains(said, "cannot be changed") {
		t.Errorf("delete in the state of before: %v\n%s", err, said)
	}
}
