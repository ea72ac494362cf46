package csi

import (
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
)

// parameters returns the Spec for the parameters of a StorageClass.
func parameters(class map[string]string) (volume.Spec, error) {
	var spec volume.Spec
	for key, value := range class {
		switch key {
		case "baseDirectory":
			if !filepath.IsAbs(value) || filepath.Clean(value) != value {
				return spec, invalid("StorageClass parameter baseDirectory: %q is not an absolute path without ., .. or a slash at the end", value)
			}
			spec.Base = value
		case "shared":
			if value != "true" && value != "false" {
				return spec, invalid("StorageClass parameter shared: %q is neither true nor false", value)
			}
			spec.Shared = value == "true"
		case "enforce":
			if value != "none" {
				return spec, invalid("StorageClass parameter enforce: %q is not none: leave the parameter out to enforce the size", value)
			}
			spec.Unlimited = true
		case localstorage.BackupParameter: // servers read it
			if value != "true" && value != "false" {
				return spec, invalid("StorageClass parameter %s: %q is neither true nor false", key, value)
			}
		case "csi.storage.k8s.io/fstype":
			spec.FSType = value
		default:
			return spec, invalid("unknown StorageClass parameter %s: use a class that has only baseDirectory, shared, enforce, backup and csi.storage.k8s.io/fstype", key)
		}
	}
	return spec, checkFSType(spec.FSType)
}

func checkFSType(name string) error {
	if name != "" && name != "ext4" && name != "xfs" {
		return invalid("file system %q: use ext4 or xfs", name)
	}
	return nil
}

// apply adds the capabilities that a claim asks for to the Spec of its class.
func apply(spec *volume.Spec, capabilities []*csi.VolumeCapability) error {
	var mounts, blocks int
	for _, capability := range capabilities {
		if err := checkAccess(capability, spec.Shared); err != nil {
			return err
		}
		if capability.GetBlock() != nil {
			blocks++
			continue
		}
		mounts++
		if fstype := capability.GetMount().GetFsType(); fstype != "" {
			if err := checkFSType(fstype); err != nil {
				return err
			}
			if spec.FSType != "" && spec.FSType != fstype {
				return invalid("the class or claim asks for two file systems, %s and %s", spec.FSType, fstype)
			}
			spec.FSType = fstype
		}
	}
	if mounts > 0 && blocks > 0 {
		return invalid("a volume cannot be both a file system and a raw block device")
	}
	if spec.Block = blocks > 0; spec.Block {
		spec.FSType = "" // the class's file system is for volumes that are not block devices
	}
	return nil
}

// checkAccess returns an error for access modes that a volume on one node cannot have.
func checkAccess(capability *csi.VolumeCapability, shared bool) error {
	if capability.GetBlock() == nil && capability.GetMount() == nil {
		return invalid("the capability says neither mount nor block")
	}
	switch mode := capability.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		return nil
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if !shared {
			return invalid("access modes ReadWriteMany and ReadOnlyMany need a StorageClass with the parameter shared: \"true\", which keeps all pods of the volume on one node (%s)", mode)
		}
		return nil
	default:
		return invalid("unknown access mode %s", mode)
	}
}
