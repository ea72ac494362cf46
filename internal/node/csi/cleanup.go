package csi

import "github.com/kedge-dev/kedge/internal/node/csi/volume"

// Thaw lets the pods of a node whose kedge was killed write again, in whose middle
// of a snapshot they may be waiting. base is Config.BaseDir.
func Thaw(base string) error { return volume.NewStore(base, "").Thaw() }

// Detach lets go of the block devices of a node's volumes, of which none is mounted
// any more. The data stay.
func Detach(base string) error { return volume.NewStore(base, "").Detach() }
