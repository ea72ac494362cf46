package csi

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// CreateSnapshot implements csi.ControllerServer. It returns when the snapshot is complete.
func (d *Driver) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if request.Name == "" || request.SourceVolumeId == "" {
		return nil, invalid("the request has no name or no volume ID")
	}
	for key := range request.Parameters {
		return nil, invalid("unknown VolumeSnapshotClass parameter %s: use a class without parameters", key)
	}
	v, err := d.store.Snapshot(ctx, request.Name, request.SourceVolumeId)
	if err != nil {
		return nil, fault(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(v)}, nil
}

func describeSnapshot(v *volume.Volume) *csi.Snapshot {
	return &csi.Snapshot{SnapshotId: v.Name, SourceVolumeId: v.Source, SizeBytes: v.Size, CreationTime: timestamppb.New(v.Created), ReadyToUse: true}
}

// DeleteSnapshot implements csi.ControllerServer.
func (d *Driver) DeleteSnapshot(ctx context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if request.SnapshotId == "" {
		return nil, invalid("the request has no snapshot ID")
	}
	if err := d.store.Delete(ctx, request.SnapshotId, true); err != nil {
		return nil, fault(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListVolumes implements csi.ControllerServer.
func (d *Driver) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	found, next, err := d.list(request.StartingToken, request.MaxEntries, func(v *volume.Volume) bool { return !v.Snapshot })
	if err != nil {
		return nil, err
	}
	response := csi.ListVolumesResponse{NextToken: next}
	for _, v := range found {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{Volume: d.describe(v)})
	}
	return &response, nil
}

// ListSnapshots implements csi.ControllerServer.
func (d *Driver) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	found, next, err := d.list(request.StartingToken, request.MaxEntries, func(v *volume.Volume) bool {
		return v.Snapshot && (request.SnapshotId == "" || request.SnapshotId == v.Name) && (request.SourceVolumeId == "" || request.SourceVolumeId == v.Source)
	})
	if err != nil {
		return nil, err
	}
	response := csi.ListSnapshotsResponse{NextToken: next}
	for _, v := range found {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(v)})
	}
	return &response, nil
}

// after is the prefix of a token for the rest of a list. The name of the last listed item follows.
// That item may not exist any more when the token is used.
const after = "after/"

// list returns a page of the wanted volumes or snapshots that are ready.
func (d *Driver) list(token string, limit int32, wanted func(*volume.Volume) bool) (page []*volume.Volume, next string, err error) {
	last, ok := strings.CutPrefix(token, after)
	if token != "" && !ok {
		return nil, "", status.Errorf(codes.Aborted, "the token %q is not from this driver: list from the beginning", token)
	}
	if limit < 0 {
		return nil, "", invalid("a page cannot have %d entries", limit)
	}
	all, err := d.store.List()
	if err != nil {
		return nil, "", fault(err)
	}
	// The volumes are sorted by name: List returns them in the order of the files' names, which
	// have a suffix.
	slices.SortFunc(all, func(a, b *volume.Volume) int { return strings.Compare(a.Name, b.Name) })
	for _, v := range all {
		if v.State != volume.Ready || v.Name <= last || !wanted(v) {
			continue
		}
		if limit > 0 && len(page) == int(limit) {
			return page, after + page[len(page)-1].Name, nil
		}
		page = append(page, v)
	}
	return page, "", nil
}
