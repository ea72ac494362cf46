package agent

import (
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

func TestCNIConfDir(t *testing.T) {
	for _, test := range []struct{ backend, endpoint, want string }{
		{"vxlan", "", "/data/agent/etc/cni/net.d"},
		{"vxlan", "unix:///run/crio/crio.sock", "/etc/cni/net.d"},
		{"none", "", "/etc/cni/net.d"},
	} {
		n := node{Config: Config{
			Dir:      datadir.Dir("/data"),
			Settings: config.Node{ContainerRuntimeEndpoint: test.endpoint},
			Cluster:  config.Cluster{FlannelBackend: test.backend},
		}}
		if got := n.cniConfDir(); got != test.want {
			t.Errorf("%s, %s: got %s, want %s", test.backend, test.endpoint, got, test.want)
		}
	}
}
