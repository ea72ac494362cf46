package containerd

import (
	"slices"

	"github.com/kedge-dev/kedge/internal/base/host"
)

// runcType is the shim for runc and for every runtime with runc's command line.
const runcType = "io.containerd.runc.v2"

// Runtime is a container runtime that a pod can select by a RuntimeClass.
type Runtime struct {
	// Name is the CRI handler, and the name of the RuntimeClass.
	Name string
	// Type is containerd's name of the shim.
	Type string
	// Path is the shim. For runc's shim it is the executable to run instead of runc. It is
	// empty for runc itself, which is part of kedge and found by PATH.
	Path string
}

// known are the runtimes that kedge looks for, under the names that k3s gives them.
var known = []struct{ name, kind, executable string }{
	{"crun", runcType, "crun"},
	{"nvidia", runcType, "nvidia-container-runtime"},
	{"nvidia-cdi", runcType, "nvidia-container-runtime.cdi"},
	{"nvidia-experimental", runcType, "nvidia-container-runtime-experimental"},
	{"kata", "io.containerd.kata.v2", "containerd-shim-kata-v2"},
	{"runsc", "io.containerd.runsc.v1", "containerd-shim-runsc-v1"},
	{"lunatic", "io.containerd.lunatic.v1", "containerd-shim-lunatic-v1"},
	{"slight", "io.containerd.slight.v1", "containerd-shim-slight-v1"},
	{"spin", "io.containerd.spin.v2", "containerd-shim-spin-v2"},
	{"wasmedge", "io.containerd.wasmedge.v1", "containerd-shim-wasmedge-v1"},
	{"wasmer", "io.containerd.wasmer.v1", "containerd-shim-wasmer-v1"},
	{"wasmtime", "io.containerd.wasmtime.v1", "containerd-shim-wasmtime-v1"},
	{"wws", "io.containerd.wws.v1", "containerd-shim-wws-v1"},
}

// runtimeDirs are searched after PATH. NVIDIA's GPU operator and the kwasm operator install
// there.
var runtimeDirs = []string{"/usr/local/nvidia/toolkit", "/opt/kwasm/bin", "/usr/local/bin", "/usr/bin"}

// RuntimeClasses returns the sorted names of all runtimes that kedge knows. A cluster has a
// RuntimeClass for each of them, because nodes differ in what is installed.
func RuntimeClasses() []string {
	var names []string
	for _, k := range known {
		names = append(names, k.name)
	}
	slices.Sort(names)
	return names
}

// Runtimes returns runc and the runtimes that are installed on this host.
func Runtimes() []Runtime { return findRuntimes(runtimeDirs) }

func findRuntimes(dirs []string) []Runtime {
	found := []Runtime{{Name: "runc", Type: runcType}}
	for _, k := range known {
		if path, err := host.LookPath(k.executable, dirs...); err == nil {
			found = append(found, Runtime{Name: k.name, Type: k.kind, Path: path})
		}
	}
	return found
}
