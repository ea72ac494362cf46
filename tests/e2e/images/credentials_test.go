package images

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/registry"
)

// The folder and the configuration of credential providers, where k3s has them.
const (
	providersFolder = "/var/lib/rancher/credentialprovider/bin"
	providersFile   = "/var/lib/rancher/credentialprovider/config.yaml"
)

// credentialProvider is a program that the kubelet asks for the password of a registry. It keeps what it
// was asked.
const credentialProvider = `#!/bin/sh
cat >>/run/asked
cat <<END
{"apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse", "cacheKeyType": "Registry",
 "auth": {"$REGISTRY": {"username": "reader", "password": "$(cat /run/password)"}}}
END
`

// TestCredentialProviders has a program of the user's that knows the password of a registry.
func TestCredentialProviders(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	r := registry.Start(t, network, registryName)
	for _, tag := range []string{"1", "2"} {
		r.Add(t, "app:"+tag, registry.Archive(t, registryName+":5000/app:"+tag))
	}
	host := newHost(t, network, r, "server-1")
	host.WriteFile(registriesFile, fmt.Sprintf("configs:\n  %q: {tls: {ca_file: %s}}\n", registryName+":5000", authorityFile))
	host.WriteFile("/etc/kedge/config.yaml", fmt.Sprintf(`
image-credential-provider-bin-dir: %s
image-credential-provider-config: %s
`, providersFolder, providersFile))
	host.WriteFile(providersFile, fmt.Sprintf(`
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: shop
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: [%[1]q]
  defaultCacheDuration: 0s
  env: [{name: REGISTRY, value: %[1]q}]
`, registryName+":5000"))

	t.Log("a provider without its program is refused at the start")
	refused, err := host.Kedge(t.Context(), "server").CombinedOutput()
	if err == nil || !strings.Contains(string(refused), "image-credential-provider-bin-dir: the provider \"shop\" needs the program "+providersFolder+"/shop") {
		t.Errorf("kedge says %v: %s", err, refused)
	}

	host.WriteFile(providersFolder+"/shop", credentialProvider)
	if err := os.Chmod(host.Path(providersFolder+"/shop"), 0o755); err != nil {
		t.Fatal(err)
	}
	host.WriteFile("/run/password", "wrong")
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)

	t.Log("the password of the program is used, whether it is right or wrong")
	run(c, "first", "server-1", registryName+":5000/app:1")
	c.Told(cluster.Namespace, "first", "401 Unauthorized")
	host.WriteFile("/run/password", "first")
	c.Pod("first")
	asked, err := os.ReadFile(host.Path("/run/asked"))
	if err != nil || !strings.Contains(string(asked), `"image":"`+registryName+`:5000/app"`) {
		t.Errorf("the program was asked %q, %v", asked, err)
	}

	t.Log("a new password")
	r.SetPassword("second")
	host.WriteFile("/run/password", "second")
	run(c, "second", "server-1", registryName+":5000/app:2")
	c.Pod("second")
}
