// Package addons tests what a cluster does with files: manifests are applied, kept up to date and
// removed, and Helm's library installs charts.
package addons

import (
	"fmt"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// folder is the folder of manifests.
const folder = "/var/lib/kedge/server/manifests/"

// scenario is a cluster with one server.
type scenario struct{ *cluster.Cluster }

// in returns the scenario for a subtest.
func (s *scenario) in(t *testing.T) *scenario {
	return &scenario{&cluster.Cluster{T: t, Server: s.Server, Client: s.Client}}
}

// write writes a manifest.
func (s *scenario) write(name, text string) {
	s.Helper()
	s.Server.Host.WriteFile(folder+name, text)
}

// writeFile writes a binary file on the host.
func (s *scenario) writeFile(path string, data []byte) error {
	return os.WriteFile(s.Server.Host.Path(path), data, 0o600)
}

// drop removes a manifest.
func (s *scenario) drop(name string) {
	s.Helper()
	if err := os.Remove(s.Server.Host.Path(folder + name)); err != nil {
		s.Fatal(err)
	}
}

// value waits until a ConfigMap has a value under the key, or does not exist if want is empty.
func (s *scenario) value(name, key, want string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("ConfigMap %s to have %s=%q", name, key, want), func() error {
		found, err := s.Client.CoreV1().ConfigMaps(cluster.Namespace).Get(s.Context(), name, metav1.GetOptions{})
		if want == "" && apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && (want == "" || found.Data[key] != want) {
			err = fmt.Errorf("it is there with %v", found.Data)
		}
		return err
	})
}

// configMap returns a ConfigMap in YAML.
func configMap(name, data string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {%s}\n", name, data)
}

func TestAddons(t *testing.T) {
	harness.Require(t)
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	host.WriteFile(folder+"early.yaml", configMap("early", "a: before the first start"))
	server := host.StartServer(t)
	server.WaitReady()
	s := &scenario{cluster.Of(t, server)}

	t.Run("manifests", func(t *testing.T) { s.in(t).manifests() })
	s.Client = server.Client()
	t.Run("charts", func(t *testing.T) { s.in(t).charts() })
}
