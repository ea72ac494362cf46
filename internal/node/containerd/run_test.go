package containerd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/kubeinit"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// A process can run only one containerd, and only once. So each test of a running containerd uses
// a process of its own, and a host of its own: a mount namespace with its own /run, and a network
// namespace, because every containerd of kedge wants streamPort. The test binary starts itself for
// both.
const (
	envNode   = "KEDGE_TEST_NODE"    // set on the host of its own
	envDir    = "KEDGE_TEST_DIR"     // set in the process that runs containerd
	envStopAt = "KEDGE_TEST_STOP_AT" // and in it the message at which it is stopped

	pauseImage = "kedge.test/pause:1"
	helloImage = "kedge.test/hello:1"
	state      = "/run/kedge/containerd"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envDir); dir != "" {
		os.Exit(runContainerd(dir))
	}
	os.Exit(m.Run())
}

func testConfig(t interface{ Fatal(...any) }, dir string) Config {
	facts, err := host.Detect()
	if err != nil {
		t.Fatal(err)
	}
	source, err := registries.New(dir+"/etc/registries.yaml", nil, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Verbosity: &kubeinit.Verbosity{},
		Source:    source,
		Root:      dir + "/root", State: state, Socket: state + "/containerd.sock",
		ConfigFile: dir + "/etc/config.toml", DropIns: []string{dir + "/etc/drop-ins/*.toml"}, CertsDir: dir + "/etc/certs.d",
		PauseArchive: dir + "/pause.tar", PauseImage: pauseImage, ImagesDir: dir + "/images",
		CNIBinDirs: []string{dir + "/cni/bin"}, CNIConfDir: dir + "/cni/net.d",
		Snapshotter: os.Getenv("KEDGE_TEST_SNAPSHOTTER"), DefaultRuntime: "runc", Facts: facts,
		Warn: func(string) {},
	}
}

// runContainerd is the child: it runs the component until SIGTERM.
func runContainerd(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logrus.AddHook(stopHook{os.Getenv(envStopAt), stop})
	c := New(testConfig(&fatal{}, dir))
	if err := c.Run(ctx, func() { fmt.Println("READY") }); err != nil {
		fmt.Println("FAILED:", err)
		return 1
	}
	if os.Getenv(envStopAt) != "" {
		time.Sleep(2 * restTime) // like a process with other parts to stop
	}
	// A goroutine that is about to end may need a moment to do so.
	var stacks bytes.Buffer
	for range 100 {
		stacks.Reset()
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
		if !strings.Contains(stacks.String(), "created by github.com/kedge-dev/kedge/") {
			return 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("LEFT GOROUTINES:", stacks.String())
	return 1
}

// restTime is how long a component that is stopped during its start may take to close everything.
const restTime = 300 * time.Millisecond

// stopHook stops the component when it logs a message, and lets the logger continue when the stop
// may be over.
type stopHook struct {
	message string
	stop    func()
}

func (stopHook) Levels() []logrus.Level { return []logrus.Level{logrus.InfoLevel} }

func (h stopHook) Fire(entry *logrus.Entry) error {
	if entry.Message == h.message {
		h.stop()
		time.Sleep(restTime)
	}
	return nil
}

type fatal struct{}

func (fatal) Fatal(args ...any) { fmt.Println(args...); os.Exit(1) }

// inNode runs test on a host of its own, with helpers in PATH.
func inNode(t *testing.T, test func(t *testing.T, dir string)) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if dir := os.Getenv(envNode); dir != "" {
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		testutil.Command(t, "ip link set lo up")
		test(t, dir)
		return
	}
	dir := t.TempDir()
	for _, helper := range []string{"github.com/opencontainers/runc", "./containerd-shim-runc-v2"} {
		build := exec.Command("go", "build", "-o", dir+"/bin/", helper)
		build.Dir = "../../../cmd/helpers"
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v: %s", helper, err, out)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), envNode+"="+dir, "PATH="+dir+"/bin:"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}

// node is a containerd that runs.
type node struct {
	*testing.T
	dir    string
	cmd    *exec.Cmd
	done   chan struct{}
	mutex  sync.Mutex
	output bytes.Buffer
	conn   *grpc.ClientConn
}

func (n *node) log() string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.output.String()
}

func startNode(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{T: t, dir: dir, done: make(chan struct{})}
	n.cmd = exec.Command("/proc/self/exe")
	n.cmd.Env = append(os.Environ(), envDir+"="+dir)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	n.cmd.Stdout, n.cmd.Stderr = w, w
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ready := make(chan struct{})
	go func() {
		defer close(n.done)
		defer r.Close()
		for scanner := bufio.NewScanner(r); scanner.Scan(); {
			n.mutex.Lock()
			n.output.WriteString(scanner.Text() + "\n")
			n.mutex.Unlock()
			if scanner.Text() == "READY" {
				close(ready)
			}
		}
	}()
	t.Cleanup(func() {
		_ = n.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the log of containerd:\n%s", n.log())
		}
	})
	select {
	case <-ready:
	case <-n.done:
		t.Fatalf("containerd ended: %s", n.log())
	case <-time.After(2 * time.Minute):
		t.Fatalf("containerd is not ready: %s", n.log())
	}
	n.conn, err = grpc.NewClient("unix://"+state+"/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.conn.Close() })
	return n
}

func (n *node) stop(signal syscall.Signal) error {
	n.conn.Close()
	if err := n.cmd.Process.Signal(signal); err != nil {
		n.Fatal(err)
	}
	// The shims keep the pipe open: wait for the process, not for its output.
	return n.cmd.Wait()
}

// stopAt starts a containerd and stops it when it logs message, before it is ready. The output
// must show no fault.
func stopAt(t *testing.T, dir, message string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envDir+"="+dir, envStopAt+"="+message)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(output), "database not open") {
		t.Errorf("stopped at %q containerd ended with %v:\n%s", message, err, output)
	}
	if strings.Contains(string(output), "READY") {
		t.Errorf("containerd was not stopped at %q:\n%s", message, output)
	}
}

func (n *node) runtime() cri.RuntimeServiceClient { return cri.NewRuntimeServiceClient(n.conn) }

func (n *node) image(name string) *cri.Image {
	n.Helper()
	response, err := cri.NewImageServiceClient(n.conn).ImageStatus(n.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		n.Fatal(err)
	}
	return response.Image
}

// wantByDigest wants an image to be found by its name and digest, with the tag and without it.
func (n *node) wantByDigest(name string) {
	n.Helper()
	digests := n.image(name).RepoDigests
	if len(digests) != 1 {
		n.Fatalf("%s has the digests %q, want one", name, digests)
	}
	_, digest, _ := strings.Cut(digests[0], "@")
	for _, asked := range []string{digests[0], name + "@" + digest} {
		if n.image(asked) == nil {
			n.Errorf("%s is not found: a pod that names it would pull it", asked)
		}
	}
}

// pid returns the process ID of a container that must be running.
func (n *node) pid(container string) int {
	n.Helper()
	response, err := n.runtime().ContainerStatus(n.Context(), &cri.ContainerStatusRequest{ContainerId: container, Verbose: true})
	if err != nil {
		n.Fatal(err)
	}
	if response.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		n.Fatalf("container is %s", response.Status.State)
	}
	var info struct{ Pid int }
	if err := json.Unmarshal([]byte(response.Info["info"]), &info); err != nil || info.Pid == 0 {
		n.Fatalf("no process ID in %q: %v", response.Info["info"], err)
	}
	return info.Pid
}

// harmless matches what upstream may log on a slow machine: when it removes a pod whose shim has
// gone already, and when it is stopped while it collects garbage.
var harmless = regexp.MustCompile(`(?m)^.*(warnings while cleaning up dead shim|garbage collection failed.*database not open|failed to finish collection context.*file already closed).*$`)

func TestPodsOutliveContainerd(t *testing.T) {
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		write(t, dir+"/images/broken.tar", []byte("not an archive"))

		n := startNode(t, dir)
		if log := n.log(); !strings.Contains(log, "broken.tar") || strings.Count(log, "preloaded") != 2 {
			t.Errorf("log does not tell of both archives and the broken one:\n%s", log)
		}
		for _, name := range []string{pauseImage, helloImage} {
			if image := n.image(name); image == nil || !image.Pinned {
				t.Errorf("image %s is %v, want it pinned", name, image)
			}
		}
		pod := n.runPod()
		pid := n.pid(pod.container)
		n.exec(pod)
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
		if _, err := os.Stat(state + "/containerd.sock"); err == nil {
			t.Error("the socket is still there after the stop")
		}

		// Stops before it is ready, while it reads what there is.
		for _, message := range []string{"Start recovering state", "Start streaming server"} {
			stopAt(t, dir, message)
		}

		// A start after an orderly stop, and one after a crash.
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			n = startNode(t, dir)
			if now := n.pid(pod.container); now != pid {
				t.Errorf("container has process %d, had %d: it was restarted", now, pid)
			}
			if log := n.log(); strings.Contains(log, "preloaded") {
				t.Errorf("unchanged archives were imported again:\n%s", log)
			} else if strings.Contains(log, "level=warning") {
				t.Errorf("a start without news warns:\n%s", log)
			}
			n.exec(pod)
			if signal == syscall.SIGKILL {
				_ = n.stop(signal)
			}
		}
		n.removePod(pod)
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
		log := harmless.ReplaceAllString(n.log(), "")
		if strings.Contains(log, "level=warning") || strings.Count(log, "level=error") != 1 {
			t.Errorf("the log of a start, a removed pod and a stop tells of more than the broken archive:\n%s", log)
		}
	})
}

// TestNativeSnapshotter does without overlayfs.
func TestNativeSnapshotter(t *testing.T) {
	t.Setenv("KEDGE_TEST_SNAPSHOTTER", native)
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		n := startNode(t, dir)
		pod := n.runPod()
		n.exec(pod)
		n.removePod(pod)
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
	})
}

// TestMissingSnapshotter removes a pod while containerd does without overlayfs. Later starts do not know the pod any
// more.
func TestMissingSnapshotter(t *testing.T) {
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		n := startNode(t, dir)
		pod := n.runPod()
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}

		t.Setenv("KEDGE_TEST_SNAPSHOTTER", native)
		write(t, dir+"/etc/drop-ins/without.toml", []byte(`disabled_plugins = ["io.containerd.snapshotter.v1.overlayfs"]`))
		n = startNode(t, dir)
		n.removePod(pod)
		_ = n.stop(syscall.SIGTERM)

		t.Setenv("KEDGE_TEST_SNAPSHOTTER", "")
		write(t, dir+"/etc/drop-ins/without.toml", nil)
		n = startNode(t, dir)
		if log := n.log(); !strings.Contains(log, "Forgetting container "+pod.container) {
			t.Errorf("the first start with overlayfs does not forget container %s:\n%s", pod.container, log)
		}
		_ = n.stop(syscall.SIGTERM)
		n = startNode(t, dir)
		if log := n.log(); strings.Contains(log, "level=error") || strings.Contains(log, "Forgetting") {
			t.Errorf("the second start still knows the pod:\n%s", log)
		}
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
	})
}

// TestMovedRoot moves containerd's folder by a drop-in. A restart must not forget the containers there.
func TestMovedRoot(t *testing.T) {
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		write(t, dir+"/etc/drop-ins/moved.toml", []byte("root = \""+dir+"/moved\""))
		n := startNode(t, dir)
		pod := n.runPod()
		pid := n.pid(pod.container)
		_ = n.stop(syscall.SIGTERM)
		n = startNode(t, dir)
		if log := n.log(); strings.Contains(log, "Forgetting") || n.pid(pod.container) != pid {
			t.Errorf("the container is not the one of before:\n%s", log)
		}
		n.removePod(pod)
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
	})
}

// pod is a pod in the host's network, so that no CNI is needed.
type pod struct{ sandbox, container string }

// runPod starts a pod and waits for what it writes to its log.
func (n *node) runPod() pod {
	n.Helper()
	cgroup := fmt.Sprintf("/kedge-test-%d", os.Getpid())
	n.Cleanup(func() { removeCgroups(cgroup) })
	network := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "1"},
		LogDirectory: n.dir + "/log",
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: network},
		},
	}
	write(n.T, n.dir+"/log/.keep", nil)
	sandbox, err := n.runtime().RunPodSandbox(n.Context(), &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		n.Fatal(err)
	}
	container, err := n.runtime().CreateContainer(n.Context(), &cri.CreateContainerRequest{
		PodSandboxId: sandbox.PodSandboxId, SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "hello"},
			Image:    &cri.ImageSpec{Image: helloImage},
			LogPath:  "hello.log",
			Linux:    &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: network}},
		},
	})
	if err != nil {
		n.Fatal(err)
	}
	if _, err := n.runtime().StartContainer(n.Context(), &cri.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		n.Fatal(err)
	}
	eventually(n.T, func() bool {
		log, _ := os.ReadFile(n.dir + "/log/hello.log")
		return bytes.Contains(log, []byte("hello from a container"))
	})
	return pod{sandbox.PodSandboxId, container.ContainerId}
}

func (n *node) exec(p pod) {
	n.Helper()
	response, err := n.runtime().ExecSync(n.Context(), &cri.ExecSyncRequest{ContainerId: p.container, Cmd: []string{"/main", "inside"}, Timeout: 20})
	if err != nil {
		n.Fatal(err)
	}
	if string(response.Stdout) != "[inside]\n" {
		n.Errorf("exec wrote %q", response.Stdout)
	}
}

func (n *node) removePod(p pod) {
	n.Helper()
	if _, err := n.runtime().StopPodSandbox(n.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		n.Fatal(err)
	}
	if _, err := n.runtime().RemovePodSandbox(n.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox}); err != nil {
		n.Fatal(err)
	}
}

// eventually waits until done returns true, at most a minute.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for range 1200 {
		if done() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the condition did not become true within a minute")
}

// removeCgroups kills what is left in the test's cgroups and removes them.
func removeCgroups(cgroup string) {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	for _, top := range append(hierarchies, "/sys/fs/cgroup"+cgroup) {
		var folders []string
		_ = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				folders = append([]string{path}, folders...)
			}
			return nil
		})
		for _, folder := range folders {
			pids, _ := os.ReadFile(folder + "/cgroup.procs")
			for _, pid := range strings.Fields(string(pids)) {
				var id int
				if _, err := fmt.Sscan(pid, &id); err == nil {
					_ = syscall.Kill(id, syscall.SIGKILL)
				}
			}
			_ = os.Remove(folder)
		}
	}
}
