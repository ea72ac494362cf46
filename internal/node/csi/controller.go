package csi

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	var response csi.ControllerGetCapabilitiesResponse
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return &response, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.Name == "" || len(request.VolumeCapabilities) == 0 {
		return nil, invalid("the request has no name or no capabilities")
	}
	spec, err := parameters(request.Parameters)
	if err != nil {
		return nil, err
	}
	if err := apply(&spec, request.VolumeCapabilities); err != nil {
		return nil, err
	}
	if len(request.MutableParameters) > 0 {
		return nil, invalid("local volumes have no attributes that a VolumeAttributesClass could change")
	}
	if required := request.AccessibilityRequirements.GetRequisite(); len(required) > 0 && !d.among(required) {
		return nil, status.Errorf(codes.ResourceExhausted, "the volume must not be made on node %s", d.cfg.Node)
	}
	spec.Size, spec.Limit = request.CapacityRange.GetRequiredBytes(), request.CapacityRange.GetLimitBytes()
	if spec.Limit != 0 && spec.Limit < spec.Size {
		return nil, status.Errorf(codes.OutOfRange, "the limit of %d bytes is less than the required %d bytes", spec.Limit, spec.Size)
	}
	if spec.Source, err = d.source(request.VolumeContentSource); err != nil {
		return nil, err
	}
	v, err := d.store.Create(ctx, request.Name, spec)
	if err != nil {
		return nil, fault(err)
	}
	answer := d.describe(v)
	answer.ContentSource = request.VolumeContentSource
	return &csi.CreateVolumeResponse{Volume: answer}, nil
}

// source returns the name of the volume or snapshot that a new volume is copied from, or "". The copy
// itself checks again that the source exists.
func (d *Driver) source(content *csi.VolumeContentSource) (string, error) {
	var name string
	var snapshot bool
	switch content.GetType().(type) {
	case nil:
		return "", nil
	case *csi.VolumeContentSource_Snapshot:
		name, snapshot = content.GetSnapshot().GetSnapshotId(), true
	case *csi.VolumeContentSource_Volume:
		name = content.GetVolume().GetVolumeId()
	}
	if name == "" {
		return "", invalid("the source of the volume has no ID")
	}
	if v, err := d.store.Get(name); err != nil || v.Snapshot != snapshot {
		return "", status.Errorf(codes.NotFound, "%s is not on node %s, and a copy must be made on the node of its source", name, d.cfg.Node)
	}
	return name, nil
}

func (d *Driver) topology() *csi.Topology {
	return &csi.Topology{Segments: map[string]string{TopologyKey: d.cfg.Node}}
}

// among tells whether one of topologies is this node.
func (d *Driver) among(topologies []*csi.Topology) bool {
	return slices.ContainsFunc(topologies, func(t *csi.Topology) bool { return t.GetSegments()[TopologyKey] == d.cfg.Node })
}

func (d *Driver) describe(v *volume.Volume) *csi.Volume {
	return &csi.Volume{VolumeId: v.Name, CapacityBytes: v.Size, AccessibleTopology: []*csi.Topology{d.topology()}}
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.VolumeId == "" {
		return nil, invalid("the request has no volume ID")
	}
	if err := d.store.Delete(ctx, request.VolumeId, false); err != nil {
		return nil, fault(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if request.VolumeId == "" || len(request.VolumeCapabilities) == 0 {
		return nil, invalid("the request has no volume ID or no capabilities")
	}
	v, err := d.volume(request.VolumeId)
	if err != nil {
		return nil, err
	}
	if _, err := parameters(request.Parameters); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	for _, capability := range request.VolumeCapabilities {
		if err := suits(v, capability); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: request.VolumeContext, VolumeCapabilities: request.VolumeCapabilities, Parameters: request.Parameters,
	}}, nil
}

// volume returns the volume with this ID.
func (d *Driver) volume(id string) (*volume.Volume, error) {
	return find(d.store, id)
}

// ControllerExpandVolume implements csi.ControllerServer. If no pod uses the volume, it expands the
// volume, whose file system grows when it is staged. Then nothing is left for NodeExpandVolume. If a
// pod uses the volume, it reserves the disk space, so that the volume grows at the latest when it is
// staged again, and leaves the rest to NodeExpandVolume. On a host whose mounted ext4 cannot grow,
// NodeExpandVolume alone would come too late for a pod that already uses the volume.
func (d *Driver) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if request.VolumeId == "" || request.CapacityRange == nil {
		return nil, invalid("the request has no volume ID or no size")
	}
	v, err := find(d.store, request.VolumeId)
	if err != nil {
		return nil, err
	}
	if request.CapacityRange.RequiredBytes <= v.Size {
		return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Size, NodeExpansionRequired: true}, nil
	}
	used, err := d.store.InUse(v)
	if err != nil {
		return nil, fault(err)
	}
	size := max(v.Size, request.CapacityRange.RequiredBytes)
	if used {
		if err := d.store.Reserve(request.VolumeId, size); err != nil {
			return nil, fault(err)
		}
	} else if size, err = expand(d.store, request.VolumeId, request.CapacityRange); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, nil
}

// GetCapacity implements csi.ControllerServer. If the node cannot have such a volume at all, the
// error says why.
func (d *Driver) GetCapacity(_ context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if topology := request.AccessibleTopology; topology != nil && !d.among([]*csi.Topology{topology}) {
		return &csi.GetCapacityResponse{}, nil
	}
	spec, err := parameters(request.Parameters)
	if err == nil {
		err = apply(&spec, request.VolumeCapabilities)
	}
	if err != nil {
		return nil, err
	}
	room, err := d.store.Room(spec)
	if err != nil {
		return nil, fault(err)
	}
	return &csi.GetCapacityResponse{
		AvailableCapacity: room,
		// One volume can have all of the room.
		MaximumVolumeSize: &wrapperspb.Int64Value{Value: room},
		MinimumVolumeSize: &wrapperspb.Int64Value{Value: volume.MinSize},
	}, nil
}
