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
		"the main package of a part":         {[]string{klog, "k8s.io/kubernetes/pkg/kubelet.(*Kubelet).syncLoopIteration", start}, "kubelet"},
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
