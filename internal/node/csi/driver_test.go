package csi

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// capability returns the capability that a claim asks for: a file system, or a block device.
func capability(mode csi.VolumeCapability_AccessMode_Mode, fstype string, block bool) *csi.VolumeCapability {
	c := csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fstype}},
	}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return &c
}

const (
	writeOnce = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	writeMany = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	readMany  = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
)

// TestRegistration calls the driver as the kubelet does, and stops it.
func TestRegistration(t *testing.T) {
	testutil.CheckLeaks(t)
	driver := start(t)
	socket := filepath.Join(driver.cfg.KubeletDir, "plugins_registry", "local.kedge.dev-reg.sock")
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Fatalf("the driver registers before the node is in the API: %v", err)
	}
	if err := driver.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := os.Stat(socket); os.IsNotExist(err); _, err = os.Stat(socket) {
		time.Sleep(time.Millisecond)
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := registration.NewRegistrationClient(connection)
	info, err := client.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil || info.Type != registration.CSIPlugin || info.Name != Name || info.Endpoint != driver.socket() {
		t.Errorf("got %v, %v", info, err)
	}
	if _, err := client.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		t.Error(err)
	}
	for _, path := range []string{socket, driver.socket()} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v, want mode 0600", path, info, err)
		}
	}
}

// TestCreateVolume tries what a StorageClass and a claim may ask for.
func TestCreateVolume(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	driver := start(t)
	class := func(words ...string) map[string]string {
		all := map[string]string{}
		for _, word := range words {
			key, value, _ := strings.Cut(word, "=")
			all[key] = value
		}
		return all
	}
	here := &csi.Topology{Segments: map[string]string{TopologyKey: "node-1"}}
	elsewhere := &csi.Topology{Segments: map[string]string{TopologyKey: "node-2"}}
	base := t.TempDir()
	for name, c := range map[string]struct {
		class map[string]string
		ask   *csi.VolumeCapability
		size  int64
		nodes []*csi.Topology
		code  codes.Code
		text  string
	}{
		"plain":            {nil, capability(writeOnce, "", false), 1 << 20, []*csi.Topology{elsewhere, here}, codes.OK, ""},
		"device":           {nil, capability(writeOnce, "", true), 1 << 20, nil, codes.OK, ""},
		"base":             {class("baseDirectory=" + base), capability(writeOnce, "ext4", false), 1 << 20, nil, codes.OK, ""},
		"base-relative":    {class("baseDirectory=data"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "not an absolute path"},
		"base-up":          {class("baseDirectory=/a/../b"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "not an absolute path"},
		"base-missing":     {class("baseDirectory=/not/there"), capability(writeOnce, "", false), 0, nil, codes.FailedPrecondition, "mount its disk"},
		"shared":           {class("shared=true", "enforce=none"), capability(writeMany, "", false), 1 << 20, nil, codes.OK, ""},
		"many-not-shared":  {nil, capability(writeMany, "", false), 1 << 20, nil, codes.InvalidArgument, `shared: "true"`},
		"readers":          {nil, capability(readMany, "", false), 1 << 20, nil, codes.InvalidArgument, `shared: "true"`},
		"shared-perhaps":   {class("shared=yes"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "neither true nor false"},
		"enforce-all":      {class("enforce=all"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "not none"},
		"unknown":          {class("size=big"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "unknown StorageClass parameter size"},
		"file-system":      {class("csi.storage.k8s.io/fstype=btrfs"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "ext4 or xfs"},
		"two-file-systems": {class("csi.storage.k8s.io/fstype=xfs"), capability(writeOnce, "ext4", false), 0, nil, codes.InvalidArgument, "two file systems"},
		"raw-of-xfs":       {class("csi.storage.k8s.io/fstype=xfs"), capability(writeOnce, "", true), 1 << 20, nil, codes.OK, ""}, // too small for xfs
		"secret":           {class("csi.storage.k8s.io/provisioner-secret-name=x"), capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "provisioner-secret-name: use a class that has only"},
		"of-another-node":  {nil, capability(writeOnce, "", false), 0, []*csi.Topology{elsewhere}, codes.ResourceExhausted, "node-1"},
		"too-large":        {nil, capability(writeOnce, "", false), 1 << 50, nil, codes.ResourceExhausted, "the largest possible volume has"},
		"Bad_name":         {nil, capability(writeOnce, "", false), 0, nil, codes.InvalidArgument, "Bad_name"},
	} {
		response, err := driver.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, Parameters: c.class, VolumeCapabilities: []*csi.VolumeCapability{c.ask},
			CapacityRange:             &csi.CapacityRange{RequiredBytes: c.size},
			AccessibilityRequirements: &csi.TopologyRequirement{Requisite: c.nodes},
		})
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %s, %q", name, err, c.code, c.text)
		}
		if err != nil {
			continue
		}
		if topology := response.Volume.AccessibleTopology; len(topology) != 1 || !maps.Equal(topology[0].Segments, here.Segments) || response.Volume.VolumeId != name {
			t.Errorf("%s: got %v", name, response.Volume)
		}
	}
}

func TestGetCapacity(t *testing.T) {
	driver := start(t)
	ask := func(request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
		return driver.GetCapacity(context.Background(), request)
	}
	got, err := ask(&csi.GetCapacityRequest{})
	if err != nil || got.AvailableCapacity == 0 || got.MaximumVolumeSize.Value != got.AvailableCapacity || got.MinimumVolumeSize.Value == 0 {
		t.Errorf("got %v, %v", got, err)
	}
	got, err = ask(&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{TopologyKey: "node-2"}}})
	if err != nil || got.AvailableCapacity != 0 {
		t.Errorf("capacity of another node: got %v, %v, want 0", got, err)
	}
	_, err = ask(&csi.GetCapacityRequest{Parameters: map[string]string{"baseDirectory": "/not/there"}})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("without the base directory: got %v, want FailedPrecondition", err)
	}
}
