package network

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestBrokenPlugin has the CNI plugin crash, answer nonsense, and hang. Each time an Event of the pod says so, kedge
// and its pods go on, no program is left, and the pod runs as soon as the plugin works again.
func TestBrokenPlugin(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	// The kubelet waits twice as long for the sandbox of a pod.
	server := host.StartServer(t, "--kubelet-arg=runtime-request-timeout=5s")
	server.WaitReady()
	c := cluster.Of(t, server)
	c.RunWeb("before", host.Name)
	process := server.Process().Pid
	const plugin = datadir.HelpersLink + "/kedge-cni"
	run(c, host, "cp", "-P", plugin, plugin+".whole") // it is a link
	for _, fault := range []struct{ name, script, want string }{
		{"panics", "echo 'panic: assignment to entry in nil map' >&2; exit 2", "assignment to entry in nil map"},
		{"is-killed", "kill -SEGV $$", "failed to setup network"},
		{"says-nonsense", "echo '{\"cniVersion\": 7'", "failed to setup network"},
		{"hangs", "exec sleep 987654", "deadline exceeded"},
	} {
		run(c, host, "sh", "-c", `rm -f "$1" && printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod 755 "$1"`, "sh", plugin, fault.script)
		c.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: kedge.local/pause:1}]
`, fault.name, host.Name))
		c.Told(cluster.Namespace, fault.name, "Failed to create pod sandbox", fault.want)
		c.Answers("before", "http://127.0.0.1:"+cluster.WebPort+"/", "before")
		run(c, host, "cp", "-P", "--remove-destination", plugin+".whole", plugin)
		c.Pod(fault.name)
	}
	if !server.Runs() || server.Process().Pid != process {
		t.Error("kedge has ended")
	}
	c.Eventually("the plugin that hung to be ended", func() error {
		if output, err := host.Command(t.Context(), "pgrep", "-f", "sleep 987654").Output(); err == nil {
			return fmt.Errorf("there is process %s", strings.TrimSpace(string(output)))
		}
		return nil
	})
}
