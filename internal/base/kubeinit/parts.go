package kubeinit

import (
	"iter"
	"runtime"
	"slices"
	"strings"
)

type part struct{ path, name string }

// parts are the names that users know upstream's packages by, with the beginnings of the
// packages' paths.
var parts = []part{
	{"k8s.io/kubernetes/pkg/kubelet.", "kubelet"},
	{"k8s.io/kubernetes/pkg/kubelet/", "kubelet"},
	{"k8s.io/kubernetes/cmd/kubelet/", "kubelet"},
	{"k8s.io/kubernetes/pkg/probe/", "kubelet"},
	{"github.com/google/cadvisor/", "kubelet"},
	{"k8s.io/kubernetes/pkg/volume/", "volumes"}, // the kubelet and the controllers use it
	{"k8s.io/kubernetes/pkg/controller/", "controllers"},
	{"k8s.io/kubernetes/cmd/kube-controller-manager/", "controllers"},
	{"k8s.io/cloud-provider/", "controllers"},
	{"k8s.io/controller-manager/", "controllers"},
	{"k8s.io/kubernetes/pkg/scheduler", "scheduler"},
	{"k8s.io/kubernetes/cmd/kube-scheduler/", "scheduler"},
	{"k8s.io/kubernetes/pkg/proxy/", "proxy"},
	{"k8s.io/kubernetes/pkg/controlplane", "apiserver"},
	{"k8s.io/kubernetes/pkg/registry/", "apiserver"},
	{"k8s.io/kubernetes/pkg/kubeapiserver/", "apiserver"},
	{"k8s.io/kubernetes/cmd/kube-apiserver/", "apiserver"},
	{"k8s.io/kubernetes/plugin/pkg/", "apiserver"},
	{"k8s.io/apiserver/", "apiserver"},
	{"k8s.io/apimachinery/pkg/util/proxy", "apiserver"},
	{"k8s.io/kube-aggregator/", "apiserver"},
	{"k8s.io/apiextensions-apiserver/", "apiserver"},
	{"github.com/containerd/containerd/", "containerd"},
	{"github.com/kubernetes-csi/", "csi"},
	{"github.com/kedge-dev/kedge/internal/node/csi", "csi"},
	{"github.com/kedge-dev/kedge/internal/node/kubelet", "kubelet"},
	{"github.com/kedge-dev/kedge/internal/node/proxy", "proxy"},
	{"github.com/kedge-dev/kedge/internal/node/network", "network"},
	{"github.com/kedge-dev/kedge/internal/node/dns", "dns"},
	{"github.com/kedge-dev/kedge/internal/node/containerd/peers", "peers"},
	{"github.com/kedge-dev/kedge/internal/controlplane/storage", "storage"},
	{"github.com/kedge-dev/kedge/internal/controlplane/addons/helm", "helm"},
	{"github.com/kedge-dev/kedge/internal/controlplane/addons/manifests", "manifests"},
	{"github.com/kedge-dev/kedge/internal/cluster/registration", "registration"},
	{"github.com/kedge-dev/kedge/internal/base/objectcache", "objects"},
}

// shared are packages that all parts use. Their own names are used only if no part is
// among their callers, as in goroutines of their own.
var shared = []part{
	{"k8s.io/client-go/", "api-client"},
	{"k8s.io/component-base/", "metrics"},
	{"k8s.io/component-helpers/", "leases"},
}

// unknown is the name for callers that are neither in parts nor in shared.
const unknown = "kubernetes"

// depth is how many callers are looked at.
const depth = 64

// callers returns the functions that called the logger, the innermost first.
func callers() iter.Seq[string] {
	var counters [depth]uintptr
	known := counters[:runtime.Callers(2, counters[:])]
	return func(yield func(function string) bool) {
		frames := runtime.CallersFrames(known)
		for more := true; more; {
			var frame runtime.Frame
			if frame, more = frames.Next(); !yield(frame.Function) {
				return
			}
		}
	}
}

// caller returns the name of the part whose code is logging.
func caller() string { return nameOf(callers()) }

// nameOf returns the name of the first function that is in parts, or else of the first in
// shared.
func nameOf(functions iter.Seq[string]) string {
	name := unknown
	for function := range functions {
		is := func(p part) bool { return strings.HasPrefix(function, p.path) }
		if i := slices.IndexFunc(parts, is); i >= 0 {
			return parts[i].name
		}
		if i := slices.IndexFunc(shared, is); i >= 0 && name == unknown {
			name = shared[i].name
		}
	}
	return name
}
