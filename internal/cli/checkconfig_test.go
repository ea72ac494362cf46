package cli

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// TestCheckConfigFindsAllFaults has a fault in the arguments of each of upstream's
// programs, and a port that another process has.
func TestCheckConfigFindsAllFaults(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	dir := t.TempDir()
	args := []string{
		"check-config", "--data-dir=" + dir, fmt.Sprintf("--https-listen-port=%d", port), "--bind-address=127.0.0.1", "--node-ip=" + hostAddress(t),
		"--kube-apiserver-arg=no-such=1", "--kube-apiserver-arg=secure-port=1", "--kube-controller-manager-arg=node-monitor-period=soon",
		"--kube-scheduler-arg=leader-elect=true", "--kubelet-arg=max-pods=many", "--kube-proxy-arg=sync=1",
	}
	wanted := []string{"no-such", "secure-port", "node-monitor-period", "leader-elect", "max-pods", `"sync"`}
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^(\w+) +ports +127.0.0.1:%d/tcp .*`, port))
	find := func(result, says string) {
		t.Helper()
		out, err := run(t, args...)
		for _, want := range wanted {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("no %s in %v", want, err)
			}
		}
		if match := line.FindStringSubmatch(out); match == nil || match[1] != result || !strings.Contains(match[0], says) {
			t.Errorf("got %q, want %s and %q, in\n%s", match, result, says, out)
		}
	}
	find("fail", fmt.Sprintf("(process %d)", os.Getpid()))

	// The port is that of the kedge that runs.
	lock, err := datadir.Dir(dir).Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	find("ok", "kedge itself has it")
}

// TestPortsFollowArguments has ports that the user has changed.
func TestPortsFollowArguments(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir, cfg.Node.NodeIP = t.TempDir(), []string{hostAddress(t)}
	shown := func() string {
		check, err := whatToCheck(cfg, config.ServerRole)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintln(check.Ports)
	}
	for _, port := range []string{"6443", "10250", "10256", "10257", "10259", "8472"} {
		if !strings.Contains(shown(), port+"/") {
			t.Errorf("no %s in %s", port, shown())
		}
	}
	cfg.Node.KubeletArgs = []string{"port=11250"}
	cfg.Server.KubeSchedulerArgs = []string{"secure_port=0"}
	cfg.Cluster.FlannelBackend = "host-gw"
	if text := shown(); !strings.Contains(text, "11250/tcp") || strings.Contains(text, "10250/") || strings.Contains(text, ":10259/") || strings.Contains(text, "8472/") {
		t.Errorf("got %s", text)
	}
	check, err := whatToCheck(cfg, config.AgentRole)
	if text := fmt.Sprintln(check.Ports); err != nil || strings.Contains(text, "6443/") || !strings.Contains(text, "11250/tcp") {
		t.Errorf("an agent: %v, %s", err, text)
	}
}

// hostAddress returns an address of this host that other hosts could reach.
func hostAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && ip.To4() != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	t.Fatal("this host has no address")
	return ""
}
