package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/inspect/fromk3s"
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

// TestCheckK3s has an installation of k3s in which one thing works, one changes and one
// cannot work, and each exit status.
func TestCheckK3s(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "etc/rancher/k3s/config.yaml")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		text   string
		status int
		line   string
	}{
		{"node-name: a\n", 0, `works +/etc/rancher/k3s/config.yaml:1 +node-name`},
		{"etcd-s3-bucket: a\n", 2, `changes +/etc/rancher/k3s/config.yaml:1 +etcd-s3-bucket +This is k3s's name: kedge's is s3-bucket`},
		{"pause-image: a\ndocker: true\n", 1, `cannot +/etc/rancher/k3s/config.yaml:2 +docker +k3s has this, and kedge does not.`},
	} {
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := run(t, "check-config", "--from="+folder)
		if status := ExitStatus(err); (err != nil || test.status != 0) && status != test.status || !regexp.MustCompile("(?m)^"+test.line).MatchString(out) {
			t.Errorf("%s: %v, and\n%s", test.text, err, out)
		}
	}
	// The last one is still there.
	out, _ := run(t, "check-config", "--from="+folder, "-o", "json")
	var found []fromk3s.Finding
	if err := json.Unmarshal([]byte(out), &found); err != nil || fromk3s.Worst(found) != fromk3s.Cannot {
		t.Errorf("%v: %s", err, out)
	}
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
