package attacks

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestNamesInAdvance lets a holder of a join token take names that nodes will have.
func TestNamesInAdvance(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "openssl", "curl")
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	host := cluster.NewHost(t, network, "thief")
	thief := on(c, host)
	for _, folder := range []string{"/run/thief", tlsFolder} {
		if err := os.MkdirAll(host.Path(folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	authority, err := os.ReadFile(c.Server.Host.Path("/var/lib/kedge/server/tls/server-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	host.WriteFile(tlsFolder+"server-ca.crt", string(authority))
	secret := c.Server.Token()[strings.LastIndex(c.Server.Token(), ":")+1:]
	body := thief.renewal("node-1", host.Address.String())
	body = strings.Replace(body, "{", `{"password": "of the thief", `, 1)
	status, answer := thief.curl(credentials{}, "/v1-kedge/join", "--user", "server:"+secret, "--data", body)
	if status != http.StatusOK {
		t.Fatalf("a token does not join: %d %s", status, answer)
	}

	var granted struct{ Certificates map[string][]byte }
	if err := json.Unmarshal([]byte(answer), &granted); err != nil {
		t.Fatal(err)
	}
	host.WriteFile("/run/thief.crt", string(granted.Certificates["client-kubelet"]))
	thiefs := credentials{"/run/thief.crt", thiefKey}

	t.Log("another machine does not get the name at once, and gets it later")
	honest := cluster.NewHost(t, network, "honest").StartAgent(t, c.Server, "--node-name=node-1")
	honest.WaitLog("the name node-1 is taken by another node")
	honest.Kill9()
	// Unit tests cover that the name is free again after ten minutes. Here an administrator
	// removes the registration.
	c.Kubectl("delete", "secret", "node-1.node-password.kedge", "--namespace=kube-system")
	honest.Start()
	c.WaitNode("node-1", corev1.ConditionTrue)
	c.Kubectl("create", "secret", "generic", "loot", "--from-literal=key=value")
	c.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: owner}
spec:
  nodeName: node-1
  containers: [{name: main, image: ` + image.TestserverName + `, args: [sleep], envFrom: [{secretRef: {name: loot}}]}]
`)
	c.Pod("owner")
	const loot = "/api/v1/namespaces/default/secrets/loot"
	if status, body := thief.curl(thiefs, loot); status != http.StatusUnauthorized {
		t.Errorf("the thief reads a Secret of the node that has the name now: %d %.200s", status, body)
	}
	if status, body := on(c, honest.Host).curl(stolen("client-kubelet"), loot); status != http.StatusOK {
		t.Errorf("the node cannot read its pod's Secret: %d %.200s", status, body)
	}
}
