package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// nodeServer is the Node service, which the kubelet calls.
type nodeServer struct {
	csi.UnimplementedNodeServer
	node  string
	store *volume.Store
	// coming is that of Driver.
	coming *sync.Map
}

// NodeGetCapabilities implements csi.NodeServer.
func (n *nodeServer) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var response csi.NodeGetCapabilitiesResponse
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return &response, nil
}

// NodeGetInfo implements csi.NodeServer.
func (n *nodeServer) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: n.node, AccessibleTopology: &csi.Topology{Segments: map[string]string{TopologyKey: n.node}}}, nil
}

// find returns the volume with this ID.
func find(store *volume.Store, id string) (*volume.Volume, error) {
	// A volume with an invalid name cannot exist, so this is "not found".
	v, err := store.Get(id)
	if err == nil && v.Snapshot || errors.Is(err, volume.ErrName) {
		err = fmt.Errorf("%s: %w", id, volume.ErrNotFound)
	}
	if err != nil {
		return nil, fault(err)
	}
	return v, nil
}

// suits returns an error if the volume cannot be used in the way that capability describes.
func suits(v *volume.Volume, capability *csi.VolumeCapability) error {
	if err := checkAccess(capability, v.Shared); err != nil {
		return err
	}
	if (capability.GetBlock() != nil) != v.Block {
		return invalid("%s was made as the other one of file system and raw block device: use it in the mode in which it was made", v.Name)
	}
	fstype := capability.GetMount().GetFsType()
	if err := checkFSType(fstype); err != nil {
		return err
	}
	if v.Kind == volume.Image && fstype != "" && fstype != v.FSType {
		return invalid("%s has the file system %s, not %s", v.Name, v.FSType, fstype)
	}
	return nil
}

// NodeStageVolume implements csi.NodeServer.
func (n *nodeServer) NodeStageVolume(_ context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if request.VolumeId == "" || request.StagingTargetPath == "" || request.VolumeCapability == nil {
		return nil, invalid("the request has no volume ID, no staging path or no capability")
	}
	v, err := find(n.store, request.VolumeId)
	if progress, ok := n.coming.Load(request.VolumeId); ok && err != nil {
		return nil, status.Error(codes.Unavailable, progress.(fmt.Stringer).String())
	}
	if err != nil {
		return nil, err
	}
	if err := suits(v, request.VolumeCapability); err != nil {
		return nil, err
	}
	if err := n.store.Stage(v.Name, request.StagingTargetPath, request.VolumeCapability.GetMount().GetMountFlags()); err != nil {
		return nil, fault(err)
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer.
func (n *nodeServer) NodeUnstageVolume(_ context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if request.VolumeId == "" || request.StagingTargetPath == "" {
		return nil, invalid("the request has no volume ID or no staging path")
	}
	if err := n.store.Unstage(request.VolumeId, request.StagingTargetPath); err != nil {
		return nil, fault(err)
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (n *nodeServer) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if request.VolumeId == "" || request.StagingTargetPath == "" || request.TargetPath == "" || request.VolumeCapability == nil {
		return nil, invalid("the request has no volume ID, no staging path, no target path or no capability")
	}
	v, err := find(n.store, request.VolumeId)
	if err != nil {
		return nil, err
	}
	if err := suits(v, request.VolumeCapability); err != nil {
		return nil, err
	}
	mode := request.VolumeCapability.AccessMode.GetMode()
	err = n.store.Publish(v.Name, volume.Publication{
		Target:   request.TargetPath,
		Options:  request.VolumeCapability.GetMount().GetMountFlags(),
		ReadOnly: request.Readonly || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		Single:   mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
	})
	if err != nil {
		return nil, fault(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (n *nodeServer) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.VolumeId == "" || request.TargetPath == "" {
		return nil, invalid("the request has no volume ID or no target path")
	}
	if err := n.store.Unpublish(request.TargetPath); err != nil {
		return nil, fault(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements csi.NodeServer. It expands the image and its file system.
func (n *nodeServer) NodeExpandVolume(_ context.Context, request *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if request.VolumeId == "" || request.VolumePath == "" {
		return nil, invalid("the request has no volume ID or no path")
	}
	size, err := expand(n.store, request.VolumeId, request.CapacityRange)
	if err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// expand expands a volume and returns its new size in bytes.
func expand(store *volume.Store, id string, sizes *csi.CapacityRange) (int64, error) {
	if _, err := find(store, id); err != nil {
		return 0, err
	}
	size, err := store.Expand(id, sizes.GetRequiredBytes(), sizes.GetLimitBytes())
	if err != nil {
		return 0, fault(err)
	}
	return size, nil
}

// NodeGetVolumeStats implements csi.NodeServer.
func (n *nodeServer) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if request.VolumeId == "" || request.VolumePath == "" {
		return nil, invalid("the request has no volume ID or no path")
	}
	v, err := find(n.store, request.VolumeId)
	if err != nil {
		return nil, err
	}
	usage, err := n.store.Usage(v.Name, request.VolumePath)
	if err != nil {
		return nil, fault(err)
	}
	response := csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: usage.Total, Used: usage.Used, Available: usage.Free}},
	}
	if !v.Block {
		response.Usage = append(response.Usage, &csi.VolumeUsage{Unit: csi.VolumeUsage_INODES, Total: usage.Inodes, Used: usage.InodesUsed, Available: usage.InodesFree})
	}
	return &response, nil
}

// NodeGetVolumeHealth implements csi.NodeServer. The kubelet asks for it, and shows it in the status of
// the pod, if its feature gate CSIVolumeHealth is on.
func (n *nodeServer) NodeGetVolumeHealth(_ context.Context, request *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if request.VolumeId == "" {
		return nil, invalid("the request has no volume ID")
	}
	v, err := find(n.store, request.VolumeId)
	if err != nil {
		return nil, err
	}
	found, err := n.store.Fault(v.Name, request.VolumePublishPath)
	if err != nil {
		return nil, fault(err)
	}
	health := csi.VolumeHealth{VolumeId: v.Name}
	if found != nil {
		entry := csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: found.Reason, Message: found.Message}
		if found.Unusable {
			entry.Status = csi.VolumeHealthErrorType_INACCESSIBLE
		}
		health.HealthStatuses = append(health.HealthStatuses, &entry)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &health}, nil
}
