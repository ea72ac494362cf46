package teardown

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/base/host"
)

// podSlice is the slice of systemd that the kubelet makes for pods. Those for the classes of pods
// and for each pod are in it.
const podSlice = "kubepods.slice"

// stopSlice makes systemd stop a slice with the units that are in it. systemd would show them as active
// until the next boot, although their cgroups are gone. It does nothing if there is no such slice.
func stopSlice(ctx context.Context, slice string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if exec.CommandContext(ctx, "systemctl", "--quiet", "is-active", slice).Run() != nil {
		return nil // also if systemd does not run here
	}
	return host.Systemctl(ctx, "stop", slice)
}

// logindFile is what a kubelet with shutdownGracePeriod writes, so that logind delays a shutdown
// for as long (pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go logindConfigDirectory kubeletLogindConf
const logindFile = "/etc/systemd/logind.conf.d/99-kubelet.conf"

// RemoveLogind removes logindFile below root, which is / for this host, and its folder if nothing
// else is in it. logind then reads its configuration again, as the kubelet lets it do
// (DBusCon.ReloadLogindConf).
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd/inhibit_linux.go DBusCon.ReloadLogindConf
func RemoveLogind(ctx context.Context, root string) error {
	file := filepath.Join(root, logindFile)
	if err := os.Remove(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if err := removeEmpty(filepath.Dir(file)); err != nil {
		return err
	}
	if exec.CommandContext(ctx, "systemctl", "--quiet", "is-active", "systemd-logind.service").Run() != nil {
		return nil // it reads its configuration when it starts
	}
	return host.Systemctl(ctx, "kill", "--signal=SIGHUP", "systemd-logind.service")
}
