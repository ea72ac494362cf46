package controllers

import (
	"errors"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
)

// csiPlugin is upstream's CSI volume plugin, set up once for all controllers that this
// process will ever build. Its setup overwrites variables of its package
// (pkg/volume/csi/csi_plugin.go, Init), which tell the kubelet in this process its node
// and its drivers. So the plugin is set up before the kubelet starts, and not again when
// this server wins another election.
//
//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go csiPlugin.Init nim
type csiPlugin struct {
	volume.AttachableVolumePlugin
	host *csiHost
}

// newCSIPlugin sets the plugin up with the listers of the informers that this process
// shares, because these outlive the controllers of one term.
func newCSIPlugin(shared informers.SharedInformerFactory, client kubernetes.Interface) (*csiPlugin, error) {
	plugin, ok := csi.ProbeVolumePlugins()[0].(volume.AttachableVolumePlugin)
	if !ok {
		return nil, errors.New("set up CSI: upstream's plugin attaches no volumes")
	}
	host := &csiHost{
		drivers:     shared.Storage().V1().CSIDrivers().Lister(),
		nodes:       shared.Storage().V1().CSINodes().Lister(),
		attachments: shared.Storage().V1().VolumeAttachments().Lister(),
	}
	host.client.Store(&client)
	if err := plugin.Init(host); err != nil {
		return nil, fmt.Errorf("set up CSI: %w", err)
	}
	return &csiPlugin{plugin, host}, nil
}

// Init implements volume.VolumePlugin. The plugin is set up already, so it changes the
// client only.
func (p *csiPlugin) Init(host volume.VolumeHost) error {
	if _, ok := host.(volume.AttachDetachVolumeHost); ok {
		client := host.GetKubeClient()
		p.host.client.Store(&client)
	}
	return nil
}

// replace puts p in place of upstream's CSI plugin.
func (p *csiPlugin) replace(plugins []volume.VolumePlugin) []volume.VolumePlugin {
	for i, plugin := range plugins {
		if plugin.GetPluginName() == csi.CSIPluginName {
			plugins[i] = p
		}
	}
	return plugins
}

// csiHost stands for the attach-detach controller of the current term. The plugin calls
// only these methods if it has no node.
//
//upstream:relies-on k8s.io/kubernetes/pkg/volume/csi/csi_plugin.go csiPlugin.Init
type csiHost struct {
	volume.VolumeHost
	client      atomic.Pointer[kubernetes.Interface]
	drivers     storagelisters.CSIDriverLister
	nodes       storagelisters.CSINodeLister
	attachments storagelisters.VolumeAttachmentLister
}

func (h *csiHost) GetKubeClient() kubernetes.Interface             { return *h.client.Load() }
func (*csiHost) GetNodeName() types.NodeName                       { return "" }
func (h *csiHost) CSIDriverLister() storagelisters.CSIDriverLister { return h.drivers }
func (h *csiHost) CSINodeLister() storagelisters.CSINodeLister     { return h.nodes }
func (*csiHost) IsAttachDetachController() bool                    { return true }

func (h *csiHost) VolumeAttachmentLister() storagelisters.VolumeAttachmentLister {
	return h.attachments
}
