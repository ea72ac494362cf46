// Follows github.com/containerd/containerd/v2 v2.4.2, cmd/containerd/builtins/builtins.go.
// Follows github.com/containerd/containerd/v2 v2.4.2, cmd/containerd/builtins/builtins_linux.go.
// Follows github.com/containerd/containerd/v2 v2.4.2, cmd/containerd/builtins/builtins_unix.go.
// Follows github.com/containerd/containerd/v2 v2.4.2, cmd/containerd/builtins/cri.go.

package containerd

// The plugins of containerd that a Kubernetes node uses. They register themselves. Compared with
// upstream's cmd/containerd/builtins, these are left out: the other snapshotters and differs, the
// restart monitor (it polls every ten seconds for labels that the CRI never sets), the cgroup
// metrics (the kubelet has its own), opt (it changes PATH), tracing, image verifiers and the
// debug and metrics listeners.
//
//upstream:follows github.com/containerd/containerd/v2/cmd/containerd/builtins/builtins.go
//upstream:follows github.com/containerd/containerd/v2/cmd/containerd/builtins/builtins_linux.go
//upstream:follows github.com/containerd/containerd/v2/cmd/containerd/builtins/builtins_unix.go
//upstream:follows github.com/containerd/containerd/v2/cmd/containerd/builtins/cri.go
import (
	_ "github.com/containerd/containerd/api/types/runc/options"
	_ "github.com/containerd/containerd/v2/core/runtime/v2"
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/cri"
	_ "github.com/containerd/containerd/v2/plugins/cri/images"
	_ "github.com/containerd/containerd/v2/plugins/cri/runtime"
	_ "github.com/containerd/containerd/v2/plugins/diff/walking/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/gc"
	_ "github.com/containerd/containerd/v2/plugins/leases"
	_ "github.com/containerd/containerd/v2/plugins/metadata"
	_ "github.com/containerd/containerd/v2/plugins/mount"
	_ "github.com/containerd/containerd/v2/plugins/nri"
	_ "github.com/containerd/containerd/v2/plugins/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/server/grpc"
	_ "github.com/containerd/containerd/v2/plugins/server/ttrpc"
	_ "github.com/containerd/containerd/v2/plugins/services/containers"
	_ "github.com/containerd/containerd/v2/plugins/services/content"
	_ "github.com/containerd/containerd/v2/plugins/services/diff"
	_ "github.com/containerd/containerd/v2/plugins/services/events"
	_ "github.com/containerd/containerd/v2/plugins/services/healthcheck"
	_ "github.com/containerd/containerd/v2/plugins/services/images"
	_ "github.com/containerd/containerd/v2/plugins/services/introspection"
	_ "github.com/containerd/containerd/v2/plugins/services/leases"
	_ "github.com/containerd/containerd/v2/plugins/services/mounts"
	_ "github.com/containerd/containerd/v2/plugins/services/namespaces"
	_ "github.com/containerd/containerd/v2/plugins/services/sandbox"
	_ "github.com/containerd/containerd/v2/plugins/services/snapshots"
	_ "github.com/containerd/containerd/v2/plugins/services/streaming"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/transfer"
	_ "github.com/containerd/containerd/v2/plugins/services/version"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/overlay/plugin"
	_ "github.com/containerd/containerd/v2/plugins/streaming"
	_ "github.com/containerd/containerd/v2/plugins/transfer"
)
