package kubeinit

import (
	"slices"
	"testing"
)

func TestNameOf(t *testing.T) {
	const (
		klog   = "k8s.io/klog/v2.ErrorS"
		client = "k8s.io/client-go/tools/cache.(*Reflector).Run"
		pods   = "k8s.io/kubernetes/pkg/kubelet/kuberuntime.(*kubeGenericRuntimeManager).SyncPod"
		start  = "runtime.goexit"
	)
	for name, test := range map[string]struct {
		callers []string
		want    string
	}{
		"a part":                             {[]string{klog, pods, start}, "kubelet"},
		"what a part uses":                   {[]string{klog, client, pods, start}, "kubelet"},
		"what all use, in its own goroutine": {[]string{klog, client, start}, "api-client"},
		"a part that another one calls":      {[]string{klog, "k8s.io/apiserver/pkg/storage/cacher.New", pods}, "apiserver"},
		"kedge's own":                        {[]string{klog, client, "github.com/kedge-dev/kedge/internal/base/objectcache.(*hub).run"}, "objects"},
		"nothing that is known":              {[]string{klog, start}, "kubernetes"},
	} {
		if got := nameOf(slices.Values(test.callers)); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestIsRoutine(t *testing.T) {
	for _, test := range []struct {
		message, detail string
		want            bool
	}{
		{"Unhandled Error", `sync "default/a" failed with read version: 615 is not as new as written version: 619`, true},
		{"Unhandled Error", "connection refused", false},
		{"Error syncing pod, skipping", "any", true},
		{`Couldn't get secret default/none: secret "none" not found`, "", true},
		{"Failed to get status for pod", "no route to host", false},
	} {
		if got := isRoutine(test.message, test.detail); got != test.want {
			t.Errorf("%s: %s: %t", test.message, test.detail, got)
		}
	}
}
