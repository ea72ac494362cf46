package controllers

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// TestNodeMasks wants ranges of nodes that follow cluster-cidr, or the user's arguments.
func TestNodeMasks(t *testing.T) {
	for _, test := range []struct {
		clusters string
		args     []string
		want     string // the sizes for all families, for IPv4 and for IPv6
		smaller  string
	}{
		{"10.42.0.0/16", nil, "0 24 0", "node-cidr-mask-size=25"},
		{"10.0.0.0/8", nil, "0 24 0", "node-cidr-mask-size=25"},
		{"10.42.0.0/20", nil, "0 24 0", "node-cidr-mask-size=25"},
		{"10.42.0.0/21", nil, "0 25 0", "node-cidr-mask-size=26"},
		{"10.42.0.0/24", nil, "0 25 0", "node-cidr-mask-size=26"},
		{"10.42.0.0/26", nil, "0 26 0", "node-cidr-mask-size=27"},
		{"10.42.0.0/16", []string{"node-cidr-mask-size=26"}, "26 0 0", "node-cidr-mask-size=27"},
		{"10.42.0.0/16", []string{"node-cidr-mask-size-ipv4=26"}, "0 26 0", "node-cidr-mask-size=27"},
		{"fd00:42::/56", nil, "0 0 64", "node-cidr-mask-size=65"},
		{"fd00:42::/48", nil, "0 0 64", "node-cidr-mask-size=65"},
		{"fd00:42::/40", nil, "0 0 56", "node-cidr-mask-size=57"},
		{"fd00:42::/60", nil, "0 0 64", "node-cidr-mask-size=65"},
		{"fd00:42::/64", nil, "0 0 72", "node-cidr-mask-size=73"},
		{"fd00:42::/112", nil, "0 0 120", "node-cidr-mask-size=121"},
		{"fd00:42::/124", nil, "0 0 124", "node-cidr-mask-size=125"},
		{"10.42.0.0/16,fd00:42::/56", nil, "0 24 64", "node-cidr-mask-size-ipv4=25, node-cidr-mask-size-ipv6=65"},
		{"fd00:42::/56,10.42.0.0/22", []string{"node-cidr-mask-size-ipv6=60"}, "0 25 60", "node-cidr-mask-size-ipv6=61, node-cidr-mask-size-ipv4=26"},
	} {
		c := Config{Cluster: config.Cluster{ClusterCIDR: strings.Split(test.clusters, ",")}, Args: test.args}
		o, err := newOptions(&c)
		if err != nil {
			t.Fatal(err)
		}
		ipam, clusters := o.NodeIPAMController.NodeIPAMControllerConfiguration, c.Cluster.PodCIDRs()
		if got := fmt.Sprint(ipam.NodeCIDRMaskSize, ipam.NodeCIDRMaskSizeIPv4, ipam.NodeCIDRMaskSizeIPv6); got != test.want {
			t.Errorf("%s %v: got %s, want %s", test.clusters, test.args, got, test.want)
		}
		if got := smallerRanges(ipam, clusters); got != test.smaller {
			t.Errorf("%s %v: got %s, want %s", test.clusters, test.args, got, test.smaller)
		}
		for _, cluster := range clusters {
			size := nodeMaskSize(cluster)
			if size < cluster.Bits() || size > cluster.Addr().BitLen() || !cluster.Addr().Is4() && size-cluster.Bits() > mostNodes {
				t.Errorf("%s cannot have ranges of /%d", cluster, size)
			}
		}
	}
}

// TestRangeFaults warns once that all ranges are used, and passes other messages on.
func TestRangeFaults(t *testing.T) {
	said := logrustest.NewLocal(logrus.StandardLogger())
	defer said.Reset()
	var passed []string
	base := funcr.New(func(_, args string) { passed = append(passed, args) }, funcr.Options{})
	c := Config{Cluster: config.Cluster{ClusterCIDR: []string{"10.42.0.0/16"}}}
	o, err := newOptions(&c)
	if err != nil {
		t.Fatal(err)
	}
	log := newRangeFaults(base, o.NodeIPAMController.NodeIPAMControllerConfiguration, []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")})
	log = log.WithName("controllers").WithValues("a", "b")
	for range 3 {
		log.WithName("node-ipam-controller").Error(fmt.Errorf("error syncing 'node-300': failed to allocate cidr from cluster cidr at idx:0: %v, requeuing",
			cidrset.ErrCIDRRangeNoCIDRsRemaining), "Error processing node work item")
	}
	entries := said.AllEntries()
	if len(entries) != 1 || len(passed) != 0 {
		t.Fatalf("got log %v and passed on %v, want one line and nothing passed on", entries, passed)
	}
	for _, word := range []string{"10.42.0.0/16", "node-300", "kedge kubectl delete node NAME", "kube-controller-manager-arg: node-cidr-mask-size=25"} {
		if !strings.Contains(entries[0].Message, word) {
			t.Errorf("no %q in %s", word, entries[0].Message)
		}
	}
	log.Error(errors.New("other"), "Error processing node work item")
	log.Error(nil, "nothing")
	if len(passed) != 2 || len(said.AllEntries()) != 1 {
		t.Errorf("got %v passed on, want both other errors", passed)
	}
}
