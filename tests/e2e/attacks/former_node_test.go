package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// keep copies an agent's certificates and keys to a folder that the agent does not change, as a
// thief does. It returns where each copy is.
func (a *attacker) keep(folder string) func(name string) credentials {
	a.Helper()
	if _, err := a.run("", "cp", "-r", tlsFolder, folder); err != nil {
		a.Fatal(err)
	}
	return func(name string) credentials {
		return credentials{folder + "/" + name + ".crt", folder + "/" + name + ".key"}
	}
}

// wantOut fails the test unless the API, renewals and tunnels refuse the certificates of a former node.
func (a *attacker) wantOut(what string, kept func(name string) credentials) {
	a.Helper()
	for _, user := range users {
		if status, body := a.curl(kept(user), "/api/v1/nodes"); status != http.StatusUnauthorized {
			a.Errorf("%s, %s: the API answers %d: %.200s", what, user, status, body)
		}
	}
	for path, args := range map[string][]string{
		"/v1-kedge/cluster": nil,
		"/v1-kedge/connect": {"--header", "Connection: Upgrade", "--header", "Upgrade: kedge-tunnel", "--http1.1"},
		"/v1-kedge/renew":   {"--data", a.renewal("lost", a.host.Address.String())},
	} {
		if status, body := a.curl(kept("client-kubelet"), path, args...); status != http.StatusUnauthorized {
			a.Errorf("%s: %s answers %d: %.200s", what, path, status, body)
		}
	}
}

// thiefKey is the key for which the attacker requests all certificates.
const thiefKey = "/run/thief.key"

// renewal returns the body of a request for new certificates without a password.
func (a *attacker) renewal(node string, addresses ...string) string {
	a.Helper()
	request, err := a.run("", "sh", "-c", "test -f "+thiefKey+" || openssl ecparam -genkey -name prime256v1 -noout -out "+thiefKey+
		"; openssl req -new -key "+thiefKey+" -subj / -outform DER | base64 --wrap=0")
	if err != nil {
		a.Fatal(err)
	}
	requests := map[string]string{}
	for _, name := range append([]string{"serving-kubelet"}, users...) {
		requests[name] = request
	}
	body, err := json.Marshal(map[string]any{"node": node, "addresses": addresses, "requests": requests})
	if err != nil {
		a.Fatal(err)
	}
	return string(body)
}

// wantSaid fails the test unless `kedge status` on a node that has left the cluster says so, with what to do, and
// its exit status says that something is wrong.
func wantSaid(c *cluster.Cluster, agent *harness.Agent, why string) {
	c.Helper()
	c.Eventually("kedge status to say that the node was "+why, func() error {
		ctx, cancel := context.WithTimeout(c.Context(), cluster.Patience)
		defer cancel()
		output, err := agent.Host.Kedge(ctx, "status").CombinedOutput()
		if err == nil {
			return fmt.Errorf("all is well: %s", output)
		}
		for _, word := range []string{why, "restart kedge with a join token", "kedge killall"} {
			if !strings.Contains(string(output), word) {
				return fmt.Errorf("no %q in %s", word, output)
			}
		}
		return nil
	})
}

// TestFormerNode: somebody has copied a node's certificates. Then the node is deleted, its name is
// given to another machine, and another node is revoked.
func TestFormerNode(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	harness.Need(t, "openssl")
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network, "lost")
	c.RunWeb("victim", "lost")
	thief := on(c, agent.Host)
	first := thief.keep("/run/first")
	if status, body := thief.curl(first("client-kubelet"), "/api/v1/nodes/lost"); status != http.StatusOK {
		t.Fatalf("a node may not read itself: %d %s", status, body)
	}

	t.Log("renewal without the password")
	if status, body := thief.curl(first("client-kubelet"), "/v1-kedge/renew", "--data", thief.renewal("lost", agent.Host.Address.String())); status != http.StatusForbidden {
		t.Errorf("the answer is %d: %.200s", status, body)
	}

	t.Log("deleted: open watches end too")
	watch := agent.Host.Command(t.Context(), "curl", "--silent", "--no-buffer", "--max-time", "120", "--cacert", tlsFolder+"server-ca.crt",
		"--resolve", "kubernetes.default.svc:6443:"+c.Server.Host.Address.String(),
		"--cert", first("client-kubelet").certificate, "--key", first("client-kubelet").key,
		"https://kubernetes.default.svc:6443/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dlost")
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- watch.Wait() }()
	c.Kubectl("delete", "node", "lost")
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the watch of a deleted node did not end")
	}
	c.Eventually("the certificates of the deleted node to be refused", func() error {
		if status, body := thief.curl(first("client-kubelet"), "/api/v1/nodes"); status != http.StatusUnauthorized {
			return fmt.Errorf("the API answers %d: %.200s", status, body)
		}
		return nil
	})
	wantSaid(c, agent, "deleted")
	thief.wantOut("after the deletion", first)

	t.Log("the same machine restarted and has a new registration under the name")
	agent.Restart()
	c.RunWeb("second", "lost")
	thief.wantOut("after the node joined again", first)

	t.Log("another machine has the name")
	second := thief.keep("/run/second")
	agent.Kill9()
	c.Kubectl("delete", "node", "lost")
	heir := cluster.NewHost(t, network, "heir").StartAgent(t, c.Server, "--node-name=lost")
	c.WaitNode("lost", corev1.ConditionTrue)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "heirloom"}, StringData: map[string]string{"key": "value"}}
	if _, err := c.Client.CoreV1().Secrets(cluster.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	thief.wantOut("after the name became another machine's", first)
	thief.wantOut("after the name became another machine's", second)

	t.Log("revoked: the Node stays, and the thief does not come back with a token")
	third := on(c, heir.Host)
	kept := third.keep("/run/third")
	node := func(args ...string) string {
		t.Helper()
		output, err := c.Server.Host.Kedge(t.Context(), append([]string{"node"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("kedge node %v: %v\n%s", args, err, output)
		}
		return string(output)
	}
	listed := func(words ...string) {
		t.Helper()
		if text := node("list"); !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(words, " ")) {
			t.Errorf("kedge node list has no %q:\n%s", words, text)
		}
	}
	listed("lost", "registered")
	listed(heir.Host.Address.String())
	listed("open")
	t.Log(node("revoke", "lost"))
	c.Eventually("the certificates of the revoked node to be refused", func() error {
		if status, body := third.curl(kept("client-kubelet"), "/api/v1/nodes"); status != http.StatusUnauthorized {
			return fmt.Errorf("the API answers %d: %.200s", status, body)
		}
		return nil
	})
	wantSaid(c, heir, "revoked")
	third.wantOut("after the node was revoked", kept)
	listed("lost", "revoked")
	c.Kubectl("get", "node", "lost")
	heir.Kill9()
	heir.Start()
	heir.WaitLog("node lost was revoked")

	t.Log("honest use: a deleted node joins again")
	heir.Kill9()
	c.Kubectl("delete", "node", "lost")
	heir.Start()
	c.WaitNode("lost", corev1.ConditionTrue)
	c.RunWeb("third", "lost")
}
