package teardown

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestPodRoot(t *testing.T) {
	for path, want := range map[string]string{
		"/kubepods/burstable/pod1/abc":                      "/kubepods",
		"/kedge-test/kubepods/pod1/abc":                     "/kedge-test/kubepods",
		"/kubepods.slice/kubepods-pod1.slice/cri-abc.scope": "/kubepods.slice",
		"/system.slice/ssh.service":                         "",
		"/user.slice/my-kubepods/x":                         "",
		"/":                                                 "",
	} {
		if got, ok := podRoot(path); got != want || ok != (want != "") {
			t.Errorf("podRoot(%q) = %q, %v; want %q", path, got, ok, want)
		}
	}
}

func TestPopulated(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{"", "besteffort", "burstable/pod1", "burstable"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, folder, "cgroup.procs"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if populated(root) || populated(filepath.Join(root, "none")) {
		t.Error("an empty cgroup is in use")
	}
	if err := os.WriteFile(filepath.Join(root, "burstable/pod1/cgroup.procs"), []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !populated(root) || populated(filepath.Join(root, "besteffort")) {
		t.Error("a process below is not seen, or one beside is")
	}
}

// TestProcesses finds a shim, by its name and socket, and the processes that it started.
func TestProcesses(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh")
	}
	start := func(socket string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command(shell)
		// The name is the first argument; the shell takes the rest as $0 and so on.
		cmd.Args = []string{"/x/" + shimName, "-c", "sleep 600 & echo $!; wait", "-namespace", "k8s.io", "-address", socket}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { // reaps the process, so that no zombie is left
			_ = cmd.Wait()
			close(ended)
		}()
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		})
		line := make([]byte, 16)
		if _, err := out.Read(line); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	mine, other := start("/test/a.sock"), start("/test/b.sock")
	pods := Pods{Socket: "/test/a.sock", State: t.TempDir()}
	processes, err := pods.processes()
	if err != nil {
		t.Fatal(err)
	}
	pids := pidsOf(processes)
	if len(pids) != 2 || pids[0] != mine.Process.Pid || slices.Contains(pids, other.Process.Pid) {
		t.Errorf("found %v; want %d and its child", pids, mine.Process.Pid)
	}
	if _, err := pods.killProcesses(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pids, err := pods.processes(); err != nil || len(pids) != 0 {
		t.Errorf("got processes %v, %v, want none", pids, err)
	}
	if err := syscall.Kill(other.Process.Pid, 0); err != nil {
		t.Errorf("the shim of another containerd was killed: %v", err)
	}
}

func TestNetworkNamespaces(t *testing.T) {
	state := t.TempDir()
	write := func(id, text string) {
		folder := filepath.Join(state, "io.containerd.runtime.v2.task", "k8s.io", id)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("sandbox", `{"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": "/var/run/netns/cni-1"}]}}`)
	write("container", `{"linux": {"namespaces": [{"type": "network", "path": "/proc/7/ns/net"}]}}`)
	write("half", `{"linux": {"na`)
	got := Pods{State: state}.networkNamespaces()
	if !slices.Equal(got, []string{"/var/run/netns/cni-1"}) {
		t.Errorf("got %v", got)
	}
}

// TestMounts needs a mount namespace of its own, and runs itself in one.
func TestMounts(t *testing.T) {
	if os.Getenv("TEARDOWN_TEST_NAMESPACE") == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestMounts$", "-test.v")
		cmd.Env = append(os.Environ(), "TEARDOWN_TEST_NAMESPACE=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Fatalf("run the test in a mount namespace of its own: %v\n%s", err, out)
		}
		return
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	mount := func(path string) {
		t.Helper()
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", path, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	mount(folder)
	t.Cleanup(func() { _ = syscall.Unmount(folder, syscall.MNT_DETACH) })
	mount(filepath.Join(folder, "pods"))
	mount(filepath.Join(folder, "pods", "volume"))

	if err := RemoveAll(folder); err == nil || !strings.Contains(err.Error(), "unmount that first") {
		t.Errorf("removed below a mount: %v", err)
	}
	if err := unmountBelow(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(folder); err != nil {
		t.Errorf("remove: %v", err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 0 {
		t.Errorf("folder that is a mount itself: got %v, %v in it, want nothing", entries, err)
	}

	// A user may have moved the folder to another disk with a symbolic link, which the
	// kernel's list of mounts does not show.
	elsewhere, link := filepath.Join(folder, "elsewhere"), filepath.Join(folder, "link")
	mount(filepath.Join(elsewhere, "volume"))
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(link); err == nil || !strings.Contains(err.Error(), "unmount that first") {
		t.Errorf("removed below a mount behind a link: %v", err)
	}
	if err := unmountBelow(link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(link); err != nil {
		t.Errorf("remove: %v", err)
	}
	entries, err = os.ReadDir(elsewhere)
	if _, gone := os.Lstat(link); err != nil || len(entries) != 0 || gone != nil {
		t.Errorf("folder behind a link: got %v, %v, %v, want it empty and the link kept", entries, err, gone)
	}
}
