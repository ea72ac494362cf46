package teardown

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/dns"
	"github.com/kedge-dev/kedge/internal/node/network"
	"github.com/kedge-dev/kedge/internal/node/ownruntime"
	"github.com/kedge-dev/kedge/internal/node/proxy"
)

// Cleanup takes away what a stopped kedge leaves on purpose: pods with their
// processes, mounts and cgroups, and every interface and packet filter. State
// on disk stays. The helpers nft and iptables are found by PATH. It does all it can and returns all errors together.
func Cleanup(ctx context.Context, dir datadir.Dir, settings config.Node, podCIDRs []netip.Prefix) error {
	var stopped error
	if socket, err := os.Readlink(datadir.RuntimeLink); err == nil && socket != datadir.ContainerdSocket {
		// It needs the network's plugins for that, so first of all.
		stopped = StopPods(ctx, socket)
	}
	storage := settings.VolumesFolder(dir)
	return errors.Join(
		stopped,
		csi.Thaw(storage), // processes that wait to write cannot be killed
		Pods{
			Socket: datadir.ContainerdSocket,
			State:  datadir.ContainerdState,
			// Not all of the data directory and of the kubelet's: a user may have
			// mounted disks in them.
			MountRoots: []string{
				datadir.RunDir,
				filepath.Join(dir.Containerd(), "tmpmounts"),
				filepath.Join(datadir.KubeletRoot, "pods"),
				filepath.Join(datadir.KubeletRoot, "plugins"),
			},
		}.Kill(ctx),
		csi.Detach(storage),
		proxy.Cleanup(ctx),
		dns.Cleanup(ctx),
		network.Cleanup(ctx, []string{dir.CNIConf(), datadir.CNIConfDir}, podCIDRs),
		ownruntime.Unlink(datadir.CNIBinDir),
		RemoveAll(datadir.RunDir),
		removeSocket(nriSocket),
	)
}

// nriSocket is what containerd leaves of its plug-in interface:
// https://github.com/containerd/nri, pkg/adaptation.
//
//upstream:relies-on github.com/containerd/nri/pkg/api/plugin.go DefaultSocketPath
const nriSocket = "/var/run/nri/nri.sock"

// removeSocket removes a socket unless somebody listens on it: another
// containerd of this host, Docker's perhaps, uses the same path.
func removeSocket(path string) error {
	if connection, err := net.Dial("unix", path); err == nil {
		return connection.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Its folder was made for it, unless there is more in it.
	_ = os.Remove(filepath.Dir(path))
	return nil
}

// Remove removes all state of a kedge from the disk, after Cleanup. A data
// directory that holds something else stays with that.
func Remove(dir datadir.Dir) error {
	if err := RemoveAll(append(dir.All(), datadir.KubeletRoot, datadir.PodLogs, datadir.ContainerLogs)...); err != nil {
		return err
	}
	faults := []error{removeEmpty(string(dir))}
	for _, folder := range []string{datadir.CNIConfDir, datadir.CNIBinDir} {
		faults = append(faults, removeEmpty(folder), removeEmpty(filepath.Dir(folder)))
	}
	return errors.Join(faults...)
}

// removeEmpty removes a folder that has nothing in it, and is no mount.
func removeEmpty(folder string) error {
	err := os.Remove(folder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EBUSY) {
		return nil
	}
	return err
}
