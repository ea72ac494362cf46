package datastores

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestUpgradeAndBack upgrades a server from an older kedge and goes back, with each datastore. All
// objects and Secrets must stay, and the pods must keep running.
func TestUpgradeAndBack(t *testing.T) {
	older := harness.RequireOlder(t)
	for name, start := range map[string]func(*testing.T, *harness.Network) *store{
		"SQLite":              nil,
		"etcd":                nil,
		"PostgreSQL":          newPostgres,
		"MariaDB":             newMariaDB,
		"an etcd of the user": newEtcd,
	} {
		t.Run(name, func(t *testing.T) {
			network := harness.NewNetwork(t)
			host := cluster.NewHost(t, network, "server-1")
			host.Install(older)
			var args []string
			if start != nil {
				s := start(t, network)
				s.start()
				host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.endpoint)
				args = s.files(host)
			} else if name == "etcd" {
				args = []string{"--cluster-init"}
			}
			server := host.StartServer(t, args...)
			server.WaitReady()
			c := cluster.Of(t, server)
			c.RunWeb("web", "server-1")
			makeSecret(c, "of-the-older")
			before := c.Containers()

			host.Install(os.Getenv("KEDGE_BINARY"))
			server.Restart()
			server.WaitReady()
			c.Client = server.Client()
			wantSecrets(c, "of-the-older")
			makeSecret(c, "of-the-newer")
			c.Kubectl("label", "secret", "of-the-older", "changed=yes")
			c.WantSameContainers(before)

			if name == "etcd" {
				allowOlder(t, host)
			}
			host.Install(older)
			server.Restart()
			server.WaitReady()
			c.Client = server.Client()
			wantSecrets(c, "of-the-older", "of-the-newer")
			c.WantSameContainers(before)
			c.RunWeb("late", "server-1")
		})
	}
}

// olderEtcd is the version of etcd in the older kedge.
const olderEtcd = "3.6.0"

// allowOlder does what docs/upgrades.md says is needed before an older etcd can read the data.
func allowOlder(t *testing.T, host *harness.Host) {
	t.Helper()
	endpoint := "unix://" + host.Path("/run/kedge/datastore.sock")
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// etcd has changed its data once it has said so.
	storage := func(want string) {
		harness.Eventually(t, patience, "etcd to store as version "+want, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			status, err := client.Status(ctx, endpoint)
			if err == nil && status.StorageVersion != want {
				err = fmt.Errorf("it stores as version %s", status.StorageVersion)
			}
			return err
		})
	}
	storage("3.7.0")
	if _, err := client.Downgrade(t.Context(), clientv3.DowngradeEnable, olderEtcd); err != nil {
		t.Fatalf("allow an older etcd: %v", err)
	}
	storage(olderEtcd)
}

func makeSecret(c *cluster.Cluster, name string) {
	c.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"name": name}}
	if _, err := c.Client.CoreV1().Secrets(cluster.Namespace).Create(c.Context(), secret, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

// wantSecrets checks that these Secrets are as makeSecret made them.
func wantSecrets(c *cluster.Cluster, names ...string) {
	c.Helper()
	for _, name := range names {
		secret, err := c.Client.CoreV1().Secrets(cluster.Namespace).Get(c.Context(), name, metav1.GetOptions{})
		if err != nil || string(secret.Data["name"]) != name {
			c.Errorf("Secret %s: %v, %v", name, secret.Data, err)
		}
	}
}
