package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// TestBackup measures what a backup uses while nothing changes, and while a client writes.
func TestBackup(t *testing.T) {
	for _, writes := range []int{0, 100} {
		t.Run(fmt.Sprint(writes, "-writes"), func(t *testing.T) { comparePair(t, backupPair(writes)) })
	}
}

// TestVolumeBackup backs up a volume with kedge and with kopia, and again after a part of it has changed. kopia reads the
// directory of the volume. kedge also makes a frozen copy, and may use half a core.
func TestVolumeBackup(t *testing.T) {
	origin, repository, archive := needFio(t)
	place := t.TempDir()
	host := harness.NewNetwork(t).NewHost(t, "server-1")
	host.Preload(archive)
	server := host.StartServer(t, "--backup=file://"+filepath.Join(place, volumeByKedge))
	server.WaitReady()
	c := cluster.Of(t, server)
	if output, err := host.Kedge(t.Context(), "backup", "key").CombinedOutput(); err != nil {
		t.Fatalf("kedge backup key: %v\n%s", err, output)
	}
	v := &volumeBench{c, place, filepath.Join(repository, "build", "bench", volumeByKopia)}
	v.begin()
	var byKedge, byKopia volumeResult
	v.write("--rw=write", "--end_fsync=1")
	byKopia.First, byKopia.FirstBytes = v.measure(volumeByKopia, v.kopia)
	byKedge.First, byKedge.FirstBytes = v.measure(volumeByKedge, func() { v.kedge("first") })
	v.write("--rw=randwrite", "--io_size="+volumeChange, "--end_fsync=1")
	byKopia.Again, byKopia.AgainBytes = v.measure(volumeByKopia, v.kopia)
	byKedge.Again, byKedge.AgainBytes = v.measure(volumeByKedge, func() { v.kedge("again") })
	report := &volumeReport{origin: origin, Results: map[string][]volumeResult{volumeByKedge: {byKedge}, volumeByKopia: {byKopia}}}
	fmt.Print(report.Table())
	if err := writeJSON(filepath.Join(repository, "build/bench/volumebackup.json"), report); err != nil {
		t.Fatal(err)
	}
}

// volumeBench is a volume, and a folder with what each of the two writes.
type volumeBench struct {
	*cluster.Cluster
	place, program string
}

// begin makes the volume and kopia's repository.
func (v *volumeBench) begin() {
	v.Helper()
	runFio(v.Cluster, placeLocal)
	repository := filepath.Join(v.place, volumeByKopia)
	if err := os.Mkdir(repository, 0o700); err != nil {
		v.Fatal(err)
	}
	v.run("repository", "create", "filesystem", "--path="+repository)
}

// write runs fio on the volume's file, with content that cannot be compressed.
func (v *volumeBench) write(args ...string) {
	v.Helper()
	command := append([]string{"/usr/bin/fio", "--name=bench", "--ioengine=psync", "--bs=1M", "--refill_buffers", "--randrepeat=0", "--size=" + volumeFile, "--filename=/" + folderOf(0) + "/file"}, args...)
	if _, err := cluster.OnNode(v.Server.Host, fioPod, command...); err != nil {
		v.Fatal(err)
	}
}

// measure returns the seconds that a backup takes, and the bytes by which its place grows.
func (v *volumeBench) measure(by string, backup func()) (seconds, grown float64) {
	v.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		v.Fatal(err)
	}
	before, began := v.size(by), time.Now()
	backup()
	return time.Since(began).Seconds(), v.size(by) - before
}

// size returns the bytes of all files in a place.
func (v *volumeBench) size(by string) (total float64) {
	v.Helper()
	err := filepath.WalkDir(filepath.Join(v.place, by), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) { // it was being written
			return nil
		}
		if err == nil {
			total += float64(info.Size())
		}
		return err
	})
	if err != nil {
		v.Fatal(err)
	}
	return total
}

// kedge makes a VolumeBackup and waits for its end.
func (v *volumeBench) kedge(name string) {
	v.Helper()
	v.Apply(fmt.Sprintf("apiVersion: kedge.dev/v1alpha1\nkind: VolumeBackup\nmetadata: {name: %s}\nspec: {claimName: %s}\n", name, folderOf(0)))
	harness.Eventually(v.T, 10*time.Minute, "the VolumeBackup to be complete", func() error {
		switch phase := v.Kubectl("get", "volumebackup", name, "-o", "jsonpath={.status.phase} {.status.message}"); {
		case strings.HasPrefix(phase, "Failed"):
			v.Fatal(phase)
		case !strings.HasPrefix(phase, "Completed"):
			return fmt.Errorf("it is %q", phase)
		}
		return nil
	})
}

// kopia backs up the directory in which the pod has the volume.
func (v *volumeBench) kopia() {
	v.Helper()
	mounts, err := filepath.Glob(v.Server.Host.Path("/var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/*/mount"))
	if err != nil || len(mounts) != 1 {
		v.Fatalf("the volume is at %v, %v", mounts, err)
	}
	v.run("snapshot", "create", "--json", "/var/lib"+strings.SplitAfterN(mounts[0], "/var/lib", 2)[1])
}

// run runs kopia on the host.
func (v *volumeBench) run(args ...string) {
	v.Helper()
	command := v.Server.Host.Command(v.Context(), v.program, append(args, "--config-file="+filepath.Join(v.place, "kopia.config"), "--log-dir="+filepath.Join(v.place, "kopia.log"))...)
	command.Env = append(os.Environ(), "KOPIA_PASSWORD=password", "KOPIA_CHECK_FOR_UPDATES=false", "KOPIA_CACHE_DIRECTORY="+filepath.Join(v.place, "kopia.cache"))
	if output, err := command.CombinedOutput(); err != nil {
		v.Fatalf("kopia (tests/bench/build.sh builds it) %v: %v\n%s", args, err, output)
	}
}
