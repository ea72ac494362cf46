package csi

import "github.com/kedge-dev/kedge/internal/node/csi/volume"

// Thaw thaws the volumes that a killed kedge left frozen in the middle of a snapshot, so that pods
// can write to them again. base is Config.BaseDir.
func Thaw(base string) error { return volume.NewStore(base, "").Thaw() }

// Detach releases the block devices of the node's volumes. No volume may be mounted any more. The
// data stay.
func Detach(base string) error { return volume.NewStore(base, "").Detach() }
