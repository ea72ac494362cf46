// Package nat has an agent join from behind NAT, where the server cannot reach it. Logs, exec and
// port-forward must work nevertheless.
package nat

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

func TestAgentBehindNAT(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	c := cluster.Start(t, network)
	agent := c.Join(network.BehindNAT(t), "agent-1")
	c.RunWeb("web", "agent-1")

	uses := func(t *testing.T) {
		c := *c
		c.T = t
		t.Run("exec", func(t *testing.T) { c.Answers("web", "http://localhost:"+cluster.WebPort+"/", "web") })
		t.Run("logs", func(t *testing.T) {
			c.Eventually("the pod's log", func() error {
				log, err := c.TryKubectl("", "logs", "web")
				if err == nil && !strings.Contains(log, "served / to ") {
					err = fmt.Errorf("it is %q", log)
				}
				return err
			})
		})
		t.Run("port-forward", func(t *testing.T) { portForward(t, c.Server.Host) })
		t.Run("node proxy", func(t *testing.T) {
			if pods := c.Kubectl("get", "--raw", "/api/v1/nodes/agent-1/proxy/pods"); !strings.Contains(pods, `"web"`) {
				t.Errorf("the kubelet lists the pods %s", pods)
			}
		})
		t.Run("pod proxy", func(t *testing.T) {
			path := "/api/v1/namespaces/" + cluster.Namespace + "/pods/web:" + cluster.WebPort + "/proxy/"
			if answer := c.Kubectl("get", "--raw", path); !strings.HasPrefix(answer, "hostname=web\n") {
				t.Errorf("the pod answers %q", answer)
			}
		})
	}
	t.Run("at first", uses)

	agent.Host.CutLink()
	c.WaitNode("agent-1", corev1.ConditionUnknown)
	agent.Host.HealLink()
	c.WaitNode("agent-1", corev1.ConditionTrue)
	t.Run("after its link was cut", uses)

	agent.Kill9()
	agent.Start()
	agent.WaitReady()
	t.Run("after it was killed", uses)

	c.Server.Kill9()
	c.Server.Start()
	c.Server.WaitReady()
	t.Run("after the server was killed", uses)
}

var forwarding = regexp.MustCompile(`Forwarding from 127\.0\.0\.1:([0-9]+) `)

// portForward connects to the pod web by `kubectl port-forward`.
func portForward(t *testing.T, host *harness.Host) {
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	cmd := host.Kedge(ctx, "kubectl", "port-forward", "pod/web", ":"+cluster.WebPort)
	output, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = writer, writer
	err = cmd.Start()
	writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
	}()
	var said strings.Builder
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		match := forwarding.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		// This is done twice, because each connection is a stream of its own.
		for range 2 {
			answer, err := get(ctx, host, net.JoinHostPort("127.0.0.1", match[1]))
			if err != nil || !strings.Contains(answer, "hostname=web\n") {
				t.Errorf("got %q, %v", answer, err)
			}
		}
		return
	}
	t.Errorf("kubectl port-forward says %s", said.String())
}

// get sends a request to an HTTP server from a host, and returns the whole answer.
func get(ctx context.Context, from *harness.Host, address string) (string, error) {
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: test\r\n\r\n")
	answer, err := io.ReadAll(conn)
	return string(answer), err
}
