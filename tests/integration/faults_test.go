package integration

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestStartRefused makes each fault that a user can correct. kedge must say what to do, and end
// with status 1.
func TestStartRefused(t *testing.T) {
	harness.Require(t)
	t.Parallel()
	host := harness.NewNetwork(t).NewHost(t, "faulty")
	shell := func(t *testing.T, script string) {
		t.Helper()
		if output, err := host.Command(t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, output)
		}
	}

	t.Run("not root", func(t *testing.T) {
		kedge := host.Command(t.Context(), "/proc/self/fd/3", "server")
		// The binary is opened here, because the user nobody may not enter every folder above it.
		binary, err := os.Open(os.Getenv("KEDGE_BINARY"))
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		kedge.ExtraFiles = []*os.File{binary}
		kedge.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		wantRefusal(t, kedge, "only root", "sudo")
	})
	t.Run("port taken", func(t *testing.T) {
		if _, err := images(); err != nil {
			t.Fatal(err)
		}
		squatter := runTestserver(host, "serve", "6443")
		if err := squatter.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = squatter.Process.Kill()
			_ = squatter.Wait()
		}()
		harness.Eventually(t, patience, "the port to be taken", func() error {
			_, err := host.Get("127.0.0.1:6443")
			return err
		})
		wantRefusal(t, host.Kedge(t.Context(), "server"), "port 6443 is taken by", "testserver", "--https-listen-port")
	})
	t.Run("three mistakes in the configuration", func(t *testing.T) {
		host.WriteFile("/etc/kedge/config.yaml", "cluster-cdir: 10.0.0.0/8\nhttps-listen-port: 99999\nflannel-backend: carrier-pigeon\n")
		defer os.Remove(host.Path("/etc/kedge/config.yaml"))
		wantRefusal(t, host.Kedge(t.Context(), "server"),
			"cluster-cdir", "did you mean cluster-cidr", "https-listen-port", "99999", "flannel-backend", "carrier-pigeon")
	})
	t.Run("a FIFO in the place of the configuration", func(t *testing.T) {
		shell(t, "mkdir -p /etc/kedge && mkfifo /etc/kedge/config.yaml")
		defer os.Remove(host.Path("/etc/kedge/config.yaml"))
		wantRefusal(t, host.Kedge(t.Context(), "server"), "/etc/kedge/config.yaml", "this is a FIFO")
	})
	t.Run("a FIFO in the place of a token", func(t *testing.T) {
		shell(t, "mkfifo /run/token")
		wantRefusal(t, host.Kedge(t.Context(), "agent", "--server=https://192.0.2.1:6443", "--token-file=/run/token"), "/run/token", "this is a FIFO")
	})
	t.Run("addresses of no interface", func(t *testing.T) {
		wantRefusal(t, host.Kedge(t.Context(), "server", "--advertise-address=203.0.113.7"), "203.0.113.7 is on no interface of this host", host.Address.String())
		wantRefusal(t, host.Kedge(t.Context(), "server", "--cluster-init", "--vip=198.51.100.77"), "no interface of this host is in the network of 198.51.100.77")
	})
	t.Run("three mistakes in the flags", func(t *testing.T) {
		wantRefusal(t, host.Kedge(t.Context(), "server", "--service-cidr=10.42.0.0/24", "--cluster-dns=1.2.3.4", "--node-name=Not_A_Name"),
			"service-cidr", "cluster-dns", "node-name")
	})
	t.Run("an argument that upstream does not have", func(t *testing.T) {
		wantRefusal(t, host.Kedge(t.Context(), "server", "--kube-apiserver-arg=audit-log-pth=/x"), "kube-apiserver has no argument audit-log-pth")
	})
	t.Run("data directory read-only", func(t *testing.T) {
		shell(t, "mkdir -p /run/read-only; mount -t tmpfs -o ro tmpfs /run/read-only")
		wantRefusal(t, host.Kedge(t.Context(), "server", "--data-dir=/run/read-only/kedge"), "/run/read-only", "read-only", "--data-dir")
	})
	t.Run("data directory full", func(t *testing.T) {
		shell(t, "mkdir -p /run/full; mount -t tmpfs -o size=64k tmpfs /run/full; head -c 64k /dev/zero >/run/full/file || true")
		wantRefusal(t, host.Kedge(t.Context(), "server", "--data-dir=/run/full"), "/run/full", "full")
	})
	t.Run("data directory full while the helpers are unpacked", func(t *testing.T) {
		shell(t, "mkdir -p /run/small; mount -t tmpfs -o size=8m tmpfs /run/small")
		wantRefusal(t, host.Kedge(t.Context(), "server", "--data-dir=/run/small"), "/run/small", "full")
	})
	t.Run("corrupt database", func(t *testing.T) {
		shell(t, "mkdir -p /run/corrupt/server/db; for i in $(seq 2000); do echo this is no database; done >/run/corrupt/server/db/state.db")
		wantRefusal(t, host.Kedge(t.Context(), "server", "--data-dir=/run/corrupt"), "database", "/run/corrupt/server/db")
	})
	t.Run("no default route", func(t *testing.T) {
		shell(t, "ip route del default")
		wantRefusal(t, host.Kedge(t.Context(), "server"), "default route", "--node-ip")
	})
	t.Run("a word too many", func(t *testing.T) {
		wantRefusal(t, host.Kedge(t.Context(), "server", "now"), "now", "--help")
	})
	t.Run("second server on the same data directory", func(t *testing.T) {
		first := sharedServer(t).Host
		wantRefusal(t, first.Kedge(t.Context(), "server", "--https-listen-port=7443"), "kedge already runs on it", "--data-dir")
	})
}

// wantRefusal runs a kedge that must end with status 1. Its last lines must have all of the words,
// and must not be log lines or a panic.
func wantRefusal(t *testing.T, kedge *harness.Cmd, words ...string) {
	t.Helper()
	began := time.AfterFunc(patience, func() { _ = kedge.Process.Kill() })
	defer began.Stop()
	output, err := kedge.CombinedOutput()
	text := string(output)
	if err == nil || kedge.ProcessState.ExitCode() != 1 {
		t.Fatalf("kedge ended with %v, want status 1:\n%s", err, text)
	}
	message, found := text, false
	if i := strings.LastIndex("\n"+text, "\nkedge: "); i >= 0 {
		message, found = text[i:], true
	}
	for _, word := range words {
		if !found || !strings.Contains(message, word) {
			t.Errorf("the message does not say %q:\n%s", word, text)
		}
	}
	if strings.Contains(text, "goroutine ") {
		t.Errorf("kedge panicked:\n%s", text)
	}
}
