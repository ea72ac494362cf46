package csi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/node/csi/volume"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// The tests mount file systems, so they run in a mount namespace of their own. Whatever happens, the
// kernel unmounts and detaches everything when that namespace ends.
func TestMain(m *testing.M) { testutil.RunInOwnNetwork(m) }

// TestSanity runs csi-test's suite over the driver's socket. Ginkgo can run a suite once per
// process, so each case has a process of its own.
func TestSanity(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const chosen = "KEDGE_TEST_SANITY"
	cases := map[string]struct {
		size   int64
		access string
		class  map[string]string
	}{
		"ext4":      {32 << 20, "mount", nil},
		"xfs":       {volume.MinXFS, "mount", map[string]string{"csi.storage.k8s.io/fstype": "xfs"}},
		"block":     {32 << 20, "block", nil},
		"directory": {32 << 20, "mount", map[string]string{"enforce": "none"}},
	}
	if name := os.Getenv(chosen); name != "" {
		driver := start(t)
		config := sanity.NewTestConfig()
		config.Address = "unix://" + driver.socket()
		config.TargetPath = filepath.Join(driver.cfg.KubeletDir, "target")
		config.StagingPath = filepath.Join(driver.cfg.KubeletDir, "staging")
		config.TestVolumeSize, config.TestVolumeExpandSize = cases[name].size, 2*cases[name].size
		config.TestVolumeAccessType, config.TestVolumeParameters = cases[name].access, cases[name].class
		sanity.Test(t, config)
		return
	}
	for name := range cases {
		t.Run(name, func(t *testing.T) {
			args := []string{"-test.run=^TestSanity$", "-test.v", "-ginkgo.no-color"}
			if name == "ext4" && !mayResize(t) {
				// The kernel does not let this process grow a mounted ext4. A mounted xfs can still
				// grow.
				args = append(args, "-ginkgo.skip=NodeExpandVolume should work")
			}
			again := exec.Command("/proc/self/exe", args...)
			again.Env = append(os.Environ(), chosen+"="+name)
			output, err := again.CombinedOutput()
			t.Logf("%s", output)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// mayResize tells whether this process has CAP_SYS_RESOURCE. Without it no mounted ext4 can grow.
func mayResize(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// start runs a driver until the end of the test. It returns when the driver serves.
func start(t *testing.T) *Driver {
	t.Helper()
	folder := t.TempDir()
	driver := New(Config{
		Node:       "node-1",
		KubeletDir: filepath.Join(folder, "kubelet"),
		BaseDir:    filepath.Join(folder, "storage"),
		Version:    "test",
		OnFault:    func(err error) { t.Error(err) },
	})
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- driver.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-ready
	return driver
}
