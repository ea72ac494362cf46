package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/node/csi"
	"github.com/kedge-dev/kedge/internal/node/csi/carry"
	"github.com/kedge-dev/kedge/internal/node/csi/provision"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// checkVolumes fails if an earlier start of this node kept its volumes in another folder,
// and they are still there: pods would not find them. It writes down the folder.
func checkVolumes(dir datadir.Dir, settings config.Node) error {
	record, now := dir.VolumesRecord(), settings.VolumesFolder(dir)
	text, err := os.ReadFile(record)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the folder of volumes: %w", err)
	}
	before := cmp.Or(strings.TrimSpace(string(text)), dir.Storage())
	if before == now && len(text) > 0 {
		return nil
	}
	if before != now {
		has, err := volume.Any(before)
		if err != nil {
			return err
		}
		if has {
			return fmt.Errorf("default-local-storage-path is %s, and this node has volumes in %s, which its pods would not find there: set `default-local-storage-path: %[2]s`, or move that folder to the new place first",
				now, before)
		}
	}
	if err := os.MkdirAll(filepath.Dir(record), 0o700); err != nil {
		return fmt.Errorf("write the folder of volumes: %w", datadir.Explain(err))
	}
	return datadir.WriteFile(record, []byte(now+"\n"), 0o600)
}

// NewDriver returns the driver that makes local volumes on a node, or nil if the cluster
// has them disabled.
func NewDriver(dir datadir.Dir, node string, settings config.Node, cluster config.Cluster) *csi.Driver {
	if !cluster.Has(config.LocalStorage) {
		return nil
	}
	log := logrus.WithField("component", "csi")
	return csi.New(csi.Config{
		Node:       node,
		KubeletDir: datadir.KubeletRoot,
		BaseDir:    settings.VolumesFolder(dir),
		Version:    version.Version,
		OnFault:    func(err error) { log.Warn(err) },
	})
}

// provisioner makes and deletes the volumes of claims on this node.
func (n *node) provisioner() component.Component {
	if n.Driver == nil {
		return nil
	}
	return provision.New(provision.Config{
		Node:      n.Node.Name,
		Driver:    n.Driver,
		Client:    n.user("system:kedge:storage"),
		Informers: n.API.Informers,
	})
}

// volumeData brings the contents of this node's volumes to the backup, and back.
func (n *node) volumeData() component.Component {
	if n.Driver == nil {
		return nil
	}
	server := n.Server.Volumes
	if server == nil {
		server = volumedata.Client(n.client())
	}
	return carry.New(carry.Config{Node: n.Node.Name, Driver: n.Driver, Server: server, Runtime: n.socket(), Informers: n.API.Informers})
}

// registration tells the kubelet of the driver.
func (n *node) registration() component.Component {
	if n.Driver == nil {
		return nil
	}
	return component.Step("csi-registration", n.Driver.Register)
}
