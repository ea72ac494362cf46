package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

var suite Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// run runs a command on a host and returns its output without the newline.
func run(t *testing.T, h *Host, name string, args ...string) string {
	t.Helper()
	output, err := h.Command(context.Background(), name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

// TestReboot checks that only files on disks survive a reboot.
func TestReboot(t *testing.T) {
	Require(t)
	Need(t, "e2fsprogs")
	network := NewNetwork(t)
	other := network.NewHost(t, "other")
	host, disk := network.NewHostOnDisk(t, "one")
	run(t, host, "sh", "-c", "echo kept >/etc/kept; echo kept >/var/lib/kedge/kept; echo lost >/run/lost; mount -t tmpfs tmpfs /mnt")
	if err := host.Command(t.Context(), "sleep", "1000").Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		host.Reboot()
		if text := run(t, host, "cat", "/etc/kept", "/var/lib/kedge/kept"); text != "kept\nkept" {
			t.Errorf("the files are %q", text)
		}
		run(t, host, "sh", "-c", "! test -e /run/lost && ! mountpoint -q /mnt")
		if processes := run(t, host, "sh", "-c", "ls -d /proc/[0-9]*"); strings.Count(processes, "\n") > 3 {
			t.Errorf("processes are %s", processes)
		}
		listener := host.Listen(":80")
		conn, err := other.DialContext(t.Context(), "tcp", host.Address.String()+":80")
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		listener.Close()
		if _, err := disk.Used(); err != nil {
			t.Error(err)
		}
	}
}

func TestHostsAreMachinesOfTheirOwn(t *testing.T) {
	Require(t)
	network := NewNetwork(t)
	one, two := network.NewHost(t, "one"), network.NewHost(t, "two")

	if name := run(t, one, "hostname"); name != "one" {
		t.Errorf("host name is %s", name)
	}
	if processes := run(t, one, "sh", "-c", "ls -d /proc/[0-9]*"); strings.Count(processes, "\n") > 3 {
		t.Errorf("host sees processes of others: %s", processes)
	}
	if links := run(t, one, "ls", "/sys/class/net"); strings.Join(strings.Fields(links), " ") != "eth0 lo" {
		t.Errorf("interfaces are %s", links)
	}
	run(t, one, "sh", "-c", "echo mine >/etc/mine; echo mine >/run/mine; mkdir -p /opt/cni/bin; test -d /sys/fs/cgroup")
	if text, err := os.ReadFile(one.Path("/etc/mine")); err != nil || string(text) != "mine\n" {
		t.Errorf("file of the host: %q, %v", text, err)
	}
	for _, path := range []string{"/etc/mine", "/run/mine", two.Path("/etc/mine"), two.Path("/run/mine")} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("one's file is at %s", path)
		}
	}
	v1, v2, err := hosts.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range append(v1, v2...) {
		run(t, one, "test", "-d", root+one.Cgroup())
	}
	if err := one.Command(t.Context(), "sh", "-c", "exit 3").Run(); err == nil || err.(*exec.ExitError).ExitCode() != 3 {
		t.Errorf("exit status is %v", err)
	}
}

func TestHostsReachEachOther(t *testing.T) {
	Require(t)
	before := interfaces(t)
	network := NewNetwork(t)
	one, two := network.NewHost(t, "one"), network.NewHost(t, "two")
	for _, address := range []string{two.Address.String(), two.Address6.String()} {
		address = net.JoinHostPort(address, "4000")
		listener := two.listen(t, address)
		go func() {
			conn, err := listener.Accept()
			if err == nil {
				_, _ = io.WriteString(conn, "hello")
				conn.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		conn, err := one.DialContext(ctx, "tcp", address)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(conn)
		if err != nil || string(text) != "hello" {
			t.Errorf("got %q, %v", text, err)
		}
		conn.Close()
		listener.Close()
	}
	if interfaces(t) != before {
		t.Errorf("the machine's interfaces are %s, were %s", interfaces(t), before)
	}
}

// interfaces returns the names of the machine's interfaces.
func interfaces(t *testing.T) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range interfaces {
		names = append(names, i.Name)
	}
	return strings.Join(names, " ")
}

func (h *Host) listen(t *testing.T, address string) (listener net.Listener) {
	t.Helper()
	var err error
	h.do(func() { listener, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// TestNothingStays closes hosts on which many things were left, and checks that all of them are gone.
func TestNothingStays(t *testing.T) {
	Require(t)
	var host *Host
	var process int
	t.Run("host", func(t *testing.T) {
		network := NewNetwork(t)
		host = network.NewHost(t, "one")
		sleep := host.Command(context.Background(), "sleep", "1000")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		process = sleep.Process.Pid
		run(t, host, "sh", "-c", "setsid sleep 1001 >/dev/null 2>&1 & mkdir /run/m && mount -t tmpfs tmpfs /run/m")
		v1, v2, err := hosts.Hierarchies()
		if err != nil {
			t.Fatal(err)
		}
		for _, root := range append(v1, v2...) {
			run(t, host, "sh", "-c", "mkdir -p "+root+host.Cgroup()+"/pods/pod && echo $$ >"+root+host.Cgroup()+"/pods/cgroup.procs; sleep 1002 >/dev/null 2>&1 &")
		}
	})
	if err := unix.Kill(process, 0); err != unix.ESRCH {
		t.Errorf("the process lives: %v", err)
	}
	// A goroutine of a test may still start commands while the host is halted or rebooted.
	if err := host.Command(context.Background(), "true").Start(); err == nil {
		t.Error("a command has started on a host that is halted")
	}
	if _, err := os.Stat(host.dir); !os.IsNotExist(err) {
		t.Errorf("the folder is there: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), host.dir) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
	v1, v2, err := hosts.Hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range append(v1, v2...) {
		if _, err := os.Stat(root + host.Cgroup()); !os.IsNotExist(err) {
			t.Errorf("the cgroup is there: %v", err)
		}
	}
}

// TestKilledRunIsCleanedUp kills a test binary that has a host. The next network must remove what it
// has left.
func TestKilledRunIsCleanedUp(t *testing.T) {
	Require(t)
	const variable = "KEDGE_TEST_KILLED_RUN"
	if os.Getenv(variable) != "" {
		host, _ := NewNetwork(t).NewHostOnDisk(t, "one")
		image, err := os.Create(host.Path("/var/lib/kedge/image"))
		if err != nil {
			t.Fatal(err)
		}
		if err := image.Truncate(killedImage); err != nil {
			t.Fatal(err)
		}
		if _, err := attach(image, 0); err != nil { // as for a raw block volume
			t.Fatal(err)
		}
		if err := host.Command(context.Background(), "sleep", "1003").Start(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(os.Getenv(variable), []byte(host.dir), 0o600); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	note := t.TempDir() + "/note"
	again := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	again.Env = append(os.Environ(), variable+"="+note)
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	var dir []byte
	Eventually(t, time.Minute, "the other run", func() (err error) {
		dir, err = os.ReadFile(note)
		return err
	})
	_ = again.Process.Kill()
	_ = again.Wait()
	NewNetwork(t)
	// Another test run on this machine may be removing it just now.
	Eventually(t, time.Minute, "what the killed run left to go", func() error {
		if _, err := os.Stat(string(dir)); !os.IsNotExist(err) {
			return fmt.Errorf("%s still exists: %v", dir, err)
		}
		sizes, err := filepath.Glob("/sys/block/loop*/size")
		for _, path := range sizes {
			if size, _ := os.ReadFile(path); strings.TrimSpace(string(size)) == fmt.Sprint(killedImage/512) {
				return fmt.Errorf("%s is that of the killed run's device", path)
			}
		}
		return err
	})
}

// killedImage is a size in bytes that no other loop device has.
const killedImage = 1003 << 10
