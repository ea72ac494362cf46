package controllers

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
	nodeipam "k8s.io/kubernetes/pkg/controller/nodeipam/config"
	"k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset"
)

const (
	// fewNodes is how many bits of a range name its nodes before the ranges of nodes
	// become smaller: 16 nodes.
	fewNodes = 4
	// mostNodes is how many bits upstream takes for that at most, with IPv6
	// (pkg/controller/nodeipam/ipam/cidrset/cidr_set.go, clusterSubnetMaxDiff).
	mostNodes = 16
)

// nodeMaskSize returns the prefix length of the ranges that nodes get of cluster-cidr.
// They are upstream's /24 and /64, so that a /16 has 256 nodes, until fewer than 16
// nodes would have one. A /25 has enough addresses yet for the 110 pods that a kubelet
// takes, and so is the smallest with IPv4.
func nodeMaskSize(cluster netip.Prefix) int {
	length := cluster.Bits()
	if cluster.Addr().Is4() {
		if length+fewNodes <= 24 {
			return 24
		}
		return max(25, length)
	}
	switch {
	case length+mostNodes < 64:
		return length + mostNodes
	case length+fewNodes <= 64:
		return 64
	}
	// A /120 has as many addresses as a /24 of IPv4.
	return max(min(length+8, 120), length)
}

// chooseNodeMasks sets what the user has not.
func chooseNodeMasks(c *nodeipam.NodeIPAMControllerConfiguration, clusters []netip.Prefix) {
	if c.NodeCIDRMaskSize != 0 {
		return
	}
	for _, cluster := range clusters {
		size := &c.NodeCIDRMaskSizeIPv6
		if cluster.Addr().Is4() {
			size = &c.NodeCIDRMaskSizeIPv4
		}
		if *size == 0 {
			*size = int32(nodeMaskSize(cluster))
		}
	}
}

// rangeFaults is a log in which a node without a range is a warning, once, that says
// what to do. Upstream has an error for each try, for ever
// (pkg/controller/nodeipam/ipam/range_allocator.go).
type rangeFaults struct {
	logr.LogSink
	warn func(cause error)
}

// newRangeFaults returns a log in the place of another.
func newRangeFaults(log logr.Logger, c *nodeipam.NodeIPAMControllerConfiguration, clusters []netip.Prefix) logr.Logger {
	var once sync.Once
	return log.WithSink(rangeFaults{log.GetSink(), func(cause error) {
		once.Do(func() {
			logrus.WithField("component", "controllers").Warnf("A node gets no addresses for its pods, and so does not become ready: "+
				"other nodes have all ranges of cluster-cidr %v (%v). Delete nodes that are gone: `kedge kubectl delete node NAME`. "+
				"For more nodes, set kube-controller-manager-arg: %s on all servers, and restart them: nodes that join then get smaller "+
				"ranges, two of which fit where a deleted node had one", clusters, cause, smallerRanges(c, clusters))
		})
	}})
}

// smallerRanges returns the arguments of kube-controller-manager with which new nodes
// get ranges of half the size.
func smallerRanges(c *nodeipam.NodeIPAMControllerConfiguration, clusters []netip.Prefix) string {
	var args []string
	for _, cluster := range clusters {
		name, size := "node-cidr-mask-size", c.NodeCIDRMaskSize
		family, own := "-ipv6", c.NodeCIDRMaskSizeIPv6
		if cluster.Addr().Is4() {
			family, own = "-ipv4", c.NodeCIDRMaskSizeIPv4
		}
		if len(clusters) > 1 {
			name += family
		}
		if size == 0 {
			size = own
		}
		args = append(args, fmt.Sprintf("%s=%d", name, size+1))
	}
	return strings.Join(args, ", ")
}

// Error implements logr.LogSink.
func (f rangeFaults) Error(err error, message string, keysAndValues ...any) {
	if err != nil && strings.Contains(err.Error(), cidrset.ErrCIDRRangeNoCIDRsRemaining.Error()) {
		f.warn(err)
		return
	}
	f.LogSink.Error(err, message, keysAndValues...)
}

// WithValues implements logr.LogSink.
func (f rangeFaults) WithValues(keysAndValues ...any) logr.LogSink {
	return rangeFaults{f.LogSink.WithValues(keysAndValues...), f.warn}
}

// WithName implements logr.LogSink.
func (f rangeFaults) WithName(name string) logr.LogSink {
	return rangeFaults{f.LogSink.WithName(name), f.warn}
}
