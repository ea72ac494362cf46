package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestRotateCAOfServers replaces the authorities of three servers with etcd, including etcd's,
// while a pod serves. The other servers keep the API available. One of the servers is down at the
// beginning.
func TestRotateCAOfServers(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	first := cluster.NewHost(t, network, "server-1").StartServer(t, "--cluster-init")
	first.WaitReady()
	c := cluster.Of(t, first)
	servers := []*harness.Server{first}
	for _, name := range []string{"server-2", "server-3"} {
		servers = append(servers, network.NewHost(t, name).StartServer(t, "--server=https://"+first.Host.Address.String()+":6443", "--token="+first.Token()))
	}
	for _, server := range servers[1:] {
		server.WaitReady()
	}
	agent := c.Join(network, "agent-1")
	pod := c.RunWeb("web", "agent-1")
	before := c.Containers()
	served := serve(t, agent.Host, pod.Status.PodIP)
	old := first.Host.Path(serverTLS + "/server-ca.crt")
	oldAuthority, err := os.ReadFile(old)
	if err != nil {
		t.Fatal(err)
	}
	oldToken := first.Token()
	on := func(server *harness.Server, args ...string) (string, error) {
		output, err := server.Host.Kedge(t.Context(), append([]string{"certificate", "rotate-ca"}, args...)...).CombinedOutput()
		return string(output), err
	}
	refused := func(server *harness.Server, want string, args ...string) {
		t.Helper()
		if output, err := on(server, args...); err == nil || !strings.Contains(output, want) {
			t.Errorf("%v: it says %s, and not %q (%v)", args, output, want, err)
		}
	}
	bundles := func(server *harness.Server, want int) {
		t.Helper()
		for _, name := range []string{"server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca"} {
			content, err := os.ReadFile(server.Host.Path(filepath.Join(serverTLS, name+".crt")))
			if n := bytes.Count(content, []byte("BEGIN")); err != nil || n != want {
				t.Errorf("%s has %d certificates in %s, want %d (%v)", server.Host.Name, n, name, want, err)
			}
		}
	}
	// Whichever server signs a service account's token, all running servers accept it.
	running := servers[:2]
	tokens := func(signed *harness.Server) {
		t.Helper()
		output, err := signed.Host.Kedge(t.Context(), "kubectl", "create", "token", "default").Output()
		if err != nil {
			t.Fatalf("a token of %s: %v", signed.Host.Name, err)
		}
		for _, server := range running {
			output, err := server.Host.Kedge(t.Context(), "kubectl", "--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify",
				"--token="+strings.TrimSpace(string(output)), "auth", "whoami").CombinedOutput()
			if err != nil {
				t.Errorf("%s does not take a token of %s: %v\n%s", server.Host.Name, signed.Host.Name, err, output)
			}
		}
	}
	// take restarts a server while another server's API is asked all the time.
	take := func(server *harness.Server, do func()) {
		t.Helper()
		other := servers[(slices.Index(servers, server)+1)%len(servers)]
		answered := asked(t, other)
		do()
		server.WaitReady()
		answered()
		c.Client = first.Client()
		reads(c, "web")
		tokens(server)
	}

	refused(first, "run `kedge certificate rotate-ca`", "--finish")
	servers[2].Terminate()
	output, err := on(servers[1])
	if err != nil {
		t.Fatalf("prepare new authorities: %v: %s", err, output)
	}
	harness.Eventually(t, cluster.Patience, "another server to prepare them", func() error {
		if !strings.Contains(first.Log(), "restart this server, so that it uses the new ones") {
			return errors.New("it did not")
		}
		return nil
	})
	refused(first, "prepared already")
	take(first, first.Restart)
	bundles(first, 3)
	refused(first, "the server at "+servers[1].Host.Address.String()+":6443 does not use the new certificate authorities yet", "--finish", "--ignore-pods")
	// It was down, and follows by itself.
	running = servers
	take(servers[2], servers[2].Start)
	bundles(servers[2], 3)
	if !strings.Contains(servers[2].Log(), "starting anew") {
		t.Error("the server that was down has not restarted itself")
	}
	take(servers[1], servers[1].Restart)
	bundles(servers[1], 3)
	for _, server := range servers {
		if token := server.Token(); !strings.Contains(output, token) {
			t.Errorf("the token of %s is %s, and was told: %s", server.Host.Name, token, output)
		}
	}
	agentTrusts := func(want int) {
		t.Helper()
		c.Eventually("the agent to follow", func() error {
			content, err := os.ReadFile(agent.Host.Path(agentTLS + "/server-ca.crt"))
			if n := bytes.Count(content, []byte("BEGIN")); err != nil || n != want {
				return fmt.Errorf("it trusts %d, %v", n, err)
			}
			return nil
		})
	}
	agentTrusts(3)

	c.Eventually("all to have followed", func() error {
		output, err := on(servers[2], "--finish", "--ignore-pods")
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
	for _, server := range servers {
		take(server, server.Restart)
		bundles(server, 1)
	}
	agentTrusts(1)
	for _, host := range []*harness.Host{servers[0].Host, servers[1].Host, servers[2].Host, agent.Host} {
		for _, folder := range []string{serverTLS, agentTLS} {
			files, err := filepath.Glob(host.Path(folder) + "/*.crt")
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				if content, err := os.ReadFile(file); err != nil || bytes.Contains(content, bytes.TrimSpace(oldAuthority)) {
					t.Errorf("%s has the old authority, %v", file, err)
				}
			}
		}
	}
	c.Eventually("pods to be told the new authorities alone", func() error {
		told := c.Kubectl("get", "configmap", "kube-root-ca.crt", "-o", `jsonpath={.data.ca\.crt}`)
		if strings.Count(told, "BEGIN") != 2 || strings.Contains(told, string(bytes.TrimSpace(oldAuthority))) {
			return errors.New(told)
		}
		return nil
	})
	const trusted = "extension-apiserver-authentication"
	c.Kubectl("--namespace=kube-system", "delete", "configmap", trusted)
	c.Eventually("aggregated APIs to be told the new authorities alone", func() error {
		told, err := c.TryKubectl("", "--namespace=kube-system", "get", "configmap", trusted, "-o", "jsonpath={.data}")
		if err != nil || strings.Count(told, "BEGIN") != 2 {
			return fmt.Errorf("got %v, want two certificates: %s", err, told)
		}
		return nil
	})
	late := cluster.NewHost(t, network, "agent-2").StartAgent(t, servers[1])
	late.WaitReady()
	c.RunWeb("after", "agent-2")
	reads(c, "after")
	c.Kubectl("delete", "pod", "after")
	if first.Token() == oldToken {
		t.Error("the token still has the old hash")
	}
	c.WantSameContainers(before)
	served()
}

// asked reads from the API of a server until the returned function is called, which checks that
// each read was answered.
func asked(t *testing.T, server *harness.Server) (stop func()) {
	client := server.Client()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	faults := make(chan []error, 1)
	go func() {
		var all []error
		for ctx.Err() == nil {
			asking, done := context.WithTimeout(context.Background(), 30*time.Second)
			if _, err := client.CoreV1().Pods("default").List(asking, metav1.ListOptions{}); err != nil {
				all = append(all, err)
			}
			done()
			time.Sleep(200 * time.Millisecond)
		}
		faults <- all
	}()
	return func() {
		t.Helper()
		cancel()
		if all := <-faults; len(all) > 0 {
			t.Errorf("%d requests to the API of %s failed: %v", len(all), server.Host.Name, all[0])
		}
	}
}
