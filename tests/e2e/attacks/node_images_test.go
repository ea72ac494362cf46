package attacks

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// mirrors makes all images come from a registry that does not exist.
const mirrors = "mirrors:\n  registry.test:\n    endpoint: [\"https://127.0.0.1:1\"]\n"

// TestNodeImages lets root on an agent offer other nodes its own image under a trusted name while the
// registry cannot be reached.
func TestNodeImages(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	newHost := func(name string) *harness.Host {
		host := cluster.NewHost(t, network, name)
		host.WriteFile("/etc/kedge/registries.yaml", mirrors)
		// Nothing listens there, so connections fail at once.
		host.WriteFile("/etc/hosts", "127.0.0.1 localhost\n127.0.0.1 registry.test\n")
		return host
	}
	server := newHost("server-1").StartServer(t, "--embedded-registry")
	server.WaitReady()
	c := cluster.Of(t, server)
	join := func(name string) *harness.Agent {
		agent := newHost(name).StartAgent(t, server)
		agent.WaitReady()
		c.Eventually(name+" to have its image", func() error {
			_, err := agent.Host.Kedge(t.Context(), "ctr", "images", "tag", "--force", image.TestserverName, "registry.test/of-"+name+":1").Output()
			return err
		})
		return agent
	}
	thief, victim := join("thief"), join("agent-2")
	tag := func(host *harness.Host, name string) {
		if _, err := host.Kedge(t.Context(), "ctr", "images", "tag", "--force", image.TestserverName, name).Output(); err != nil {
			t.Fatal(err)
		}
	}
	tag(server.Host, "registry.test/honest:1")
	digest := digestOf(t, thief.Host, "registry.test/of-thief:1")
	attack := on(c, thief.Host)

	t.Run("by a label", func(t *testing.T) {
		attack := &attacker{t, attack.host, attack.server}
		for _, user := range users {
			output, err := attack.kubectl(stolen(user), "", "label", "node", "thief", "node-role.kubernetes.io/control-plane=true")
			attack.wantForbidden("be labelled as a server as "+user, output, err)
		}
		// This holds even if the attacker has got the label somehow.
		c.Kubectl("label", "node", "thief", "node-role.kubernetes.io/control-plane=true")
	})
	t.Run("a tag", func(t *testing.T) {
		pull := func(name, image string) {
			c.Apply(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec:\n  nodeName: agent-2\n  terminationGracePeriodSeconds: 0\n"+
				"  containers: [{name: main, image: %q, imagePullPolicy: IfNotPresent, args: [sleep]}]\n", name, image))
		}
		pull("poisoned", "registry.test/of-thief:1")
		c.Eventually("the agent's tag to be refused", func() error {
			events, err := c.Client.CoreV1().Events(cluster.Namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=poisoned"})
			if err != nil {
				return err
			}
			for _, event := range events.Items {
				if event.Reason == "Pulled" || event.Reason == "Started" {
					t.Errorf("a node runs what another one gives it for a tag: %s", event.Message)
					return nil
				}
				if strings.Contains(event.Message, "the servers of this cluster do not have the image either") {
					return nil
				}
			}
			return fmt.Errorf("it is not refused yet: %d events", len(events.Items))
		})
		pull("honest", "registry.test/honest:1")
		c.Pod("honest")
		// Content with a digest may come from any node.
		pull("digest", "registry.test/of-thief@"+digest)
		c.Pod("digest")
	})
	t.Run("content of a digest", func(t *testing.T) {
		attack := &attacker{t, attack.host, attack.server}
		address := victim.Host.Address.String()
		for user, want := range map[string]string{"client-kubelet": "200", "client-storage": "403", "client-dns": "403", "client-kube-proxy": "403"} {
			files := stolen(user)
			status, err := attack.run("", "curl", "--silent", "--insecure", "--cert", files.certificate, "--key", files.key,
				"--output", "/dev/null", "--write-out", "%{http_code}", "https://"+address+":5001/v2/of-thief/manifests/"+digest)
			if err != nil || status != want {
				t.Errorf("%s is answered %s, %v, want %s", user, status, err, want)
			}
		}
		status, err := attack.run("", "curl", "--silent", "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}", "https://"+address+":5001/v2/")
		if err == nil {
			t.Errorf("without a certificate the answer is %s", status)
		}
	})
	t.Run("a node that was deleted", func(t *testing.T) {
		attack := &attacker{t, attack.host, attack.server}
		thief.Terminate()
		c.Kubectl("delete", "node", "thief")
		files := stolen("client-kubelet")
		c.Eventually("the deleted node to be refused", func() error {
			status, err := attack.run("", "curl", "--silent", "--insecure", "--cert", files.certificate, "--key", files.key,
				"--output", "/dev/null", "--write-out", "%{http_code}", "https://"+victim.Host.Address.String()+":5001/v2/of-thief/manifests/"+digest)
			if err != nil || status != "403" {
				err = fmt.Errorf("it is answered %s, %v", status, err)
			}
			return err
		})
	})
}

// digestOf returns the digest of an image on a host.
func digestOf(t *testing.T, host *harness.Host, name string) string {
	t.Helper()
	output, err := host.Kedge(t.Context(), "ctr", "images", "ls", "name=="+name).Output()
	if err != nil {
		t.Fatal(err)
	}
	for word := range strings.FieldsSeq(string(output)) {
		if strings.HasPrefix(word, "sha256:") {
			return word
		}
	}
	t.Fatalf("no digest in %s", output)
	return ""
}
