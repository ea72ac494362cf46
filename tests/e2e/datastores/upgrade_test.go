package datastores

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/member"
	"github.com/kedge-dev/kedge/tests/harness/store"
)

// TestUpgradeAndBack upgrades a server from an older kedge and goes back, with each datastore. All
// objects and Secrets must stay, and the pods must keep running.
func TestUpgradeAndBack(t *testing.T) {
	t.Parallel()
	older := harness.RequireOlder(t)
	for name, start := range map[string]func(*testing.T, *harness.Network) *store.Store{
		"SQLite":              nil,
		"etcd":                nil,
		"PostgreSQL":          store.NewPostgreSQL,
		"MariaDB":             store.NewMariaDB,
		"an etcd of the user": store.NewEtcd,
	} {
		t.Run(name, func(t *testing.T) {
			network := harness.NewNetwork(t)
			host := cluster.NewHost(t, network, "server-1")
			host.Install(older)
			var args []string
			if start != nil {
				s := start(t, network)
				s.Start()
				host.Setenv("KEDGE_DATASTORE_ENDPOINT", s.Endpoint)
				args = s.Files(host)
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
				member.AllowOlder(t, host)
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
