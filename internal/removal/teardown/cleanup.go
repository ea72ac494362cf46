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
	"github.com/kedge-dev/kedge/internal/node/policy"
	"github.com/kedge-dev/kedge/internal/node/proxy"
)

// Cleanup removes what a stopped kedge leaves on purpose: pods with their processes,
// mounts and cgroups, and every interface and packet filter. State on disk stays. The
// helpers nft and iptables must be in PATH. Cleanup does all it can and returns all
// errors together.
func Cleanup(ctx context.Context, dir datadir.Dir, settings config.Node, podCIDRs []netip.Prefix) error {
	var stopped error
	if socket, err := os.Readlink(datadir.RuntimeLink); err == nil && socket != datadir.ContainerdSocket {
		// First of all, because the runtime needs the network's plugins for that.
		stopped = StopPods(ctx, socket)
	}
	storage := settings.VolumesFolder(dir)
	return errors.Join(
		stopped,
		csi.Thaw(storage), // processes that wait to write cannot be killed
		Pods{
			Socket: datadir.ContainerdSocket,
			State:  datadir.ContainerdState,
			// Not the whole data directory and the kubelet's, because a user may have
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
		policy.Cleanup(ctx),
		network.Cleanup(ctx, []string{dir.CNIConf(), datadir.CNIConfDir}, podCIDRs),
		ownruntime.Unlink(datadir.CNIBinDir),
		RemoveAll(datadir.RunDir),
		removeSocket(nriSocket),
	)
}

// nriSocket is the socket of NRI, containerd's plug-in interface. containerd leaves it
// behind: https://github.com/containerd/nri, pkg/adaptation.
//
//upstream:relies-on github.com/containerd/nri/pkg/api/plugin.go DefaultSocketPath
const nriSocket = "/var/run/nri/nri.sock"

// removeSocket removes a socket unless a program listens on it: another containerd on
// this host, such as Docker's, uses the same path.
func removeSocket(path string) error {
	if connection, err := net.Dial("unix", path); err == nil {
		return connection.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// containerd has made the folder for the socket. It stays if something else is in it.
	_ = os.Remove(filepath.Dir(path))
	return nil
}

// Remove removes all state of a kedge from the disk. Call Cleanup first. If the data
// directory holds other files, these stay.
func Remove(dir datadir.Dir) error {
	if err := RemoveAll(append(dir.All(), datadir.KubeletRoot, datadir.PodLogs, datadir.ContainerLogs)...); err != nil {
		return err
	}
	return removeEmpty(string(dir))
}

// removeEmpty removes a folder if it is empty and not a mount.
func removeEmpty(folder string) error {
	err := os.Remove(folder)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EBUSY) {
		return nil
	}
	return err
}
