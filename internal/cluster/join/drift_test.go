package join

import (
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
)

func TestCheckSettings(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*config.Cluster)
		// want are parts of the error; none for no error.
		want []string
	}{
		"same":                     {func(*config.Cluster) {}, nil},
		"default DNS, written out": {func(c *config.Cluster) { c.ClusterDNS = []string{"10.43.0.10"} }, nil},
		"pods":                     {func(c *config.Cluster) { c.ClusterCIDR = []string{"10.52.0.0/16"} }, []string{"cluster-cidr is 10.42.0.0/16 here and 10.52.0.0/16 there"}},
		"backend":                  {func(c *config.Cluster) { c.FlannelBackend = "none" }, []string{"flannel-backend is vxlan here and none there"}},
		"port of VXLAN":            {func(c *config.Cluster) { c.VXLAN.Port = 4789 }, []string{"flannel-conf has VNI 1 and Port 8472 here, and VNI 1 and Port 4789 there"}},
		"Services, and their DNS": {func(c *config.Cluster) { c.ServiceCIDR = []string{"10.53.0.0/16"} },
			[]string{"service-cidr is 10.43.0.0/16 here", "cluster-dns is 10.43.0.10 here and 10.53.0.10 there"}},
	} {
		theirs := config.Default().Cluster
		test.change(&theirs)
		err := checkSettings(config.Default().Cluster, theirs, "pi:6443")
		if (err == nil) != (test.want == nil) {
			t.Errorf("%s: got %v", name, err)
		}
		for _, part := range test.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %v, want %q in it", name, err, part)
			}
		}
	}
}

func TestDrifted(t *testing.T) {
	theirs := map[string][]byte{"a": []byte("1"), "b": []byte("2\n"), "c": []byte("3"), "d": []byte("4")}
	own := map[string][]byte{"a": []byte("1"), "b": []byte("2"), "c": []byte("other"), "e": []byte("5")}
	if names := drifted(own, theirs); !slices.Equal(names, []string{"c"}) {
		t.Errorf("got %v, want [c]: a file that this server lacks has not drifted", names)
	}
}
