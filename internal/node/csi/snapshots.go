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

// CreateSnapshot implements csi.ControllerServer. It returns when the snapshot is
// whole.
func (d *Driver) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if request.Name == "" || request.SourceVolumeId == "" {
		return nil, invalid("a snapshot needs a name and the id of a volume")
	}
	for key := range request.Parameters {
		return nil, invalid("VolumeSnapshotClass parameter %s is not known: there are none", key)
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
		return nil, invalid("no snapshot id")
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

// after begins a token for the rest of a list; the last name that was listed
// follows, which may be gone when it is used.
const after = "after/"

// list is a page of what is whole and wanted.
func (d *Driver) list(token string, limit int32, wanted func(*volume.Volume) bool) (page []*volume.Volume, next string, err error) {
	last, ok := strings.CutPrefix(token, after)
	if token != "" && !ok {
		return nil, "", status.Errorf(codes.Aborted, "the token %q is none of this driver's: list from the beginning", token)
	}
	if limit < 0 {
		return nil, "", invalid("%d entries", limit)
	}
	all, err := d.store.List()
	if err != nil {
		return nil, "", fault(err)
	}
	// By name, as the files are in another order with their suffix.
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
