package sqlite

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// childVariable is set in a copy of the test binary that a test has started.
const childVariable = "KEDGE_TEST_CHILD"

// settingVariable passes a setting to killedWriter.
const settingVariable = "KEDGE_TEST_SETTING"

func TestMain(m *testing.M) {
	if folder, ok := strings.CutPrefix(os.Getenv(childVariable), "writer:"); ok {
		killedWriter(folder, os.Getenv(settingVariable))
		return
	}
	os.Exit(m.Run())
}

// privately runs the calling test again in a process with mounts of its own
// and returns false, or returns true if this is that process.
func privately(t *testing.T) bool {
	t.Helper()
	if os.Getenv(childVariable) == "mounts" {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), childVariable+"=mounts")
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("run the test in a mount namespace of its own: %v\n%s", err, output)
	}
	return false
}

// tmpfs mounts an empty file system, with options like "size=1m", in a process
// made by privately.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(folder, syscall.MNT_DETACH) })
	return folder
}

// running is a datastore in this process.
type running struct {
	backend *Backend
	*clientv3.Client
	*Datastore
	folder string
	cancel context.CancelFunc
	done   chan error
}

// config returns the configuration for a database in folder. The socket's path
// must be short.
func config(folder string) Config {
	return Config{Dir: filepath.Join(folder, "db"), Socket: filepath.Join(folder, "kine.sock")}
}

// run starts a datastore in folder and waits until it is ready.
func run(t *testing.T, folder string) *running {
	t.Helper()
	d := New(config(folder))
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Datastore: d, folder: folder, cancel: cancel, done: make(chan error, 1)}
	ready := make(chan struct{})
	go func() { r.done <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-r.done:
		cancel()
		t.Fatalf("the datastore ended before it was ready: %v", err)
	}
	r.Client, r.backend = client(t, d.Endpoint().URL), d.backend
	t.Cleanup(func() { r.stop(t) })
	return r
}

// stop stops the datastore, if it runs, and fails the test if it ends badly.
func (r *running) stop(t *testing.T) {
	t.Helper()
	if r.cancel == nil {
		return
	}
	r.Client.Close()
	r.cancel()
	r.cancel = nil
	if err := <-r.done; err != nil {
		t.Errorf("a stop returned %v", err)
	}
}

// fails waits until the datastore fails by itself.
func (r *running) fails(t *testing.T) error {
	t.Helper()
	err := <-r.done
	r.Client.Close()
	r.cancel()
	r.cancel = nil
	if err == nil {
		t.Error("the datastore ended without an error")
	}
	return err
}

func client(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shortDir is a temporary folder whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "kine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	return folder
}

// checkNothingLeft fails the test if a goroutine of the datastore or a socket
// in folder is left.
func checkNothingLeft(t *testing.T, folder string) {
	t.Helper()
	var left string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if left = goroutines(); left == "" {
			break
		}
	}
	if left != "" {
		t.Errorf("goroutines left:\n%s", left)
	}
	socket := config(folder).Socket
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket file is left")
	}
	if c, err := net.Dial("unix", socket); err == nil {
		c.Close()
		t.Error("the socket still answers")
	}
}

// goroutines returns the stacks of the datastore's goroutines and of the
// libraries under it.
func goroutines() string {
	buffer := make([]byte, 1<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	var found []string
	for _, stack := range strings.Split(string(buffer), "\n\n")[1:] {
		for _, part := range []string{"k3s-io/kine", "datastore/kine.(", "database/sql", "google.golang.org/grpc", "go-sqlite3", "workqueue"} {
			if strings.Contains(stack, part) && !strings.Contains(stack, "testing.tRunner") {
				found = append(found, stack)
				break
			}
		}
	}
	return strings.Join(found, "\n\n")
}
