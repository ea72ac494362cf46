package containerd

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestEndOnAFullDisk ends containers while another process takes whatever is freed on the disk.
func TestEndOnAFullDisk(t *testing.T) {
	inNode(t, func(t *testing.T, dir string) {
		writeImages(t, dir)
		write(t, dir+"/root/.keep", nil)
		if err := unix.Mount("tmpfs", dir+"/root", "tmpfs", 0, "size=128m"); err != nil {
			t.Fatal(err)
		}
		n := startNode(t, dir)
		for _, database := range []string{"io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"} {
			var file unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, "root", database), &file); err != nil || file.Blocks*512 < file.Size+reserved {
				t.Errorf("%s has %d bytes, and %d on the disk (%v)", database, file.Size, file.Blocks*512, err)
			}
		}
		onDisk := func() {
			t.Helper()
			eventually(t, func() bool {
				entries, err := os.ReadDir(state + "/ended")
				return err == nil && len(entries) == 0
			})
		}

		pod := n.runPod()
		free := fill(t, dir+"/root/eaten")
		n.stopContainer(pod)
		free()
		onDisk()
		_ = n.stop(syscall.SIGKILL)
		n = startNode(t, dir)
		n.wantExited(pod)
		n.removePod(pod)

		// The next start moves what a crash has left.
		pod = n.runPod()
		free = fill(t, dir+"/root/eaten")
		n.stopContainer(pod)
		_ = n.stop(syscall.SIGKILL)
		free()
		n = startNode(t, dir)
		n.wantExited(pod)
		onDisk()
		n.removePod(pod)

		// The kubelet removes the pod while the disk is still full. Nothing of the pod may be left.
		pod = n.runPod()
		free = fill(t, dir+"/root/eaten")
		n.stopContainer(pod)
		eventually(t, func() bool {
			mounted, err := mountinfo.Mounted(n.folder(dir, pod))
			return err == nil && !mounted
		})
		n.removePod(pod)
		free()
		onDisk()
		if _, err := os.Stat(n.folder(dir, pod)); !os.IsNotExist(err) {
			t.Errorf("the folder of a container that was removed: %v", err)
		}
		if err := n.stop(syscall.SIGTERM); err != nil {
			t.Errorf("containerd ended with %v: %s", err, n.log())
		}
	})
}

// fill takes all space of the disk on which the file is, and whatever is freed later, until free is called.
func fill(t *testing.T, file string) (free func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	full := make(chan struct{})
	var filling sync.WaitGroup
	filling.Go(func() {
		f, err := os.Create(file)
		if err != nil {
			t.Error(err)
		}
		defer f.Close()
		defer os.Remove(file)
		first, part := sync.Once{}, bytes.Repeat([]byte("x"), 4096)
		for ctx.Err() == nil {
			if _, err := f.Write(part); err != nil {
				first.Do(func() { close(full) })
				time.Sleep(100 * time.Microsecond)
			}
		}
	})
	free = func() {
		stop()
		filling.Wait()
	}
	t.Cleanup(free)
	<-full
	return free
}

// stopContainer stops a container.
func (n *node) stopContainer(p pod) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
	defer cancel()
	if _, err := n.runtime().StopContainer(ctx, &cri.StopContainerRequest{ContainerId: p.container}); err != nil {
		n.Fatalf("stop the container: %v", err)
	}
	n.wantExited(p)
}

func (n *node) wantExited(p pod) {
	n.Helper()
	answer, err := n.runtime().ContainerStatus(n.Context(), &cri.ContainerStatusRequest{ContainerId: p.container})
	if err != nil {
		n.Fatal(err)
	}
	if answer.Status.State != cri.ContainerState_CONTAINER_EXITED || answer.Status.ExitCode != 137 {
		n.Errorf("the container is %v, with the exit code %d", answer.Status.State, answer.Status.ExitCode)
	}
}

// folder returns the folder that the CRI has for the container.
func (n *node) folder(dir string, p pod) string {
	return filepath.Join(dir, "root", criPlugin, "containers", p.container)
}
