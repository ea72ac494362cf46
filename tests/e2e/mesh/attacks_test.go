package mesh

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestCapturedNode does what root on a node may do to the pods of others.
func TestCapturedNode(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := &meshed{cluster.Start(t, network, "--flannel-backend=mesh"), map[string]string{}}
	evil := c.Join(network.BehindNAT(t), "evil")
	victim := site{"victim", harness.PortRestricted}
	c.Join(network.Behind(t, victim.nat), victim.name)
	captured := site{"evil", harness.PortRestricted}
	for _, name := range []string{"server-1", "evil", "victim"} {
		c.ips[name] = c.RunWeb("on-"+name, name).Status.PodIP
	}
	c.talk(captured, victim)
	fetch := func() (string, error) {
		return c.TryKubectl("", "exec", "on-evil", "--", "/testserver", "fetch", "http://"+c.ips["victim"]+":"+cluster.WebPort+"/")
	}

	t.Run("pass for a pod of another node", func(t *testing.T) {
		// The packets of its pod get the address of the server's pod.
		rules := fmt.Sprintf("table ip evil {\n chain out {\n type nat hook postrouting priority 90\n oifname kedge-mesh snat to %s\n}\n}\n", c.ips["server-1"])
		nft(t, evil.Host, rules)
		if answer, err := fetch(); err == nil {
			t.Errorf("a pod answers a forged address: %q", answer)
		}
		nft(t, evil.Host, "delete table ip evil\n")
		c.in(t).Answers("on-evil", "http://"+c.ips["victim"]+":"+cluster.WebPort+"/", "on-victim")
	})

	t.Run("stay after it was revoked", func(t *testing.T) {
		if output, err := c.Server.Host.Kedge(t.Context(), "node", "revoke", "evil").CombinedOutput(); err != nil {
			t.Fatalf("revoke: %v: %s", err, output)
		}
		c.in(t).Eventually("node evil to be no peer", func() error {
			ways, err := c.ways("victim")
			if _, there := ways["evil"]; err == nil && there {
				err = fmt.Errorf("the ways are %+v", ways)
			}
			return err
		})
	})
}

func nft(t *testing.T, host *harness.Host, rules string) {
	t.Helper()
	command := host.Command(t.Context(), "nft", "-f", "-")
	command.Stdin = strings.NewReader(rules)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, output)
	}
}
