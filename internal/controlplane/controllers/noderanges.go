package controllers

import (
	"cmp"
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
	// fewNodes is how many bits of cluster-cidr must number nodes before the ranges of
	// nodes become smaller than upstream's: 16 nodes.
	fewNodes = 4
	// mostNodes is how many bits upstream lets number nodes, with IPv6
	// (pkg/controller/nodeipam/ipam/cidrset/cidr_set.go, clusterSubnetMaxDiff).
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset/cidr_set.go clusterSubnetMaxDiff
	mostNodes = 16
)

// nodeMaskSize returns the prefix length of the ranges that nodes get of cluster-cidr:
// upstream's /24 and /64 as long as 16 nodes or more get one, and then smaller ranges.
// With IPv4 the smallest is a /25, which has enough addresses for the 110 pods that a
// kubelet admits.
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
	// A /120 has as many addresses as a /24 with IPv4.
	return max(min(length+8, 120), length)
}

// chooseNodeMasks sets the sizes of nodes' ranges that the user has not set.
func chooseNodeMasks(c *nodeipam.NodeIPAMControllerConfiguration, clusters []netip.Prefix) {
	if c.NodeCIDRMaskSize != 0 {
		return
	}
	for _, cluster := range clusters {
		size := &c.NodeCIDRMaskSizeIPv6
		if cluster.Addr().Is4() {
			size = &c.NodeCIDRMaskSizeIPv4
		}
		*size = cmp.Or(*size, int32(nodeMaskSize(cluster)))
	}
}

// rangeFaults is a log that warns once of a node without a range, and says what to do.
// Upstream logs an error at each try, for ever
// (pkg/controller/nodeipam/ipam/range_allocator.go).
//
//upstream:relies-on k8s.io/kubernetes/pkg/controller/nodeipam/ipam/range_allocator.go rangeAllocator.AllocateOrOccupyCIDR rangeAllocator.processNextNodeWorkItem
type rangeFaults struct {
	logr.LogSink
	warn func(cause error)
}

// newRangeFaults returns a log that passes all other messages to log.
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

// smallerRanges returns the arguments of kube-controller-manager that give new nodes
// ranges of half the size.
func smallerRanges(c *nodeipam.NodeIPAMControllerConfiguration, clusters []netip.Prefix) string {
	var args []string
	for _, cluster := range clusters {
		name := "node-cidr-mask-size"
		family, own := "-ipv6", c.NodeCIDRMaskSizeIPv6
		if cluster.Addr().Is4() {
			family, own = "-ipv4", c.NodeCIDRMaskSizeIPv4
		}
		if len(clusters) > 1 {
			name += family
		}
		args = append(args, fmt.Sprintf("%s=%d", name, cmp.Or(c.NodeCIDRMaskSize, own)+1))
	}
	return strings.Join(args, ", ")
}

// Error implements logr.LogSink.
func (f rangeFaults) Error(err error, message string, keysAndValues ...any) {
	//upstream:relies-on k8s.io/kubernetes/pkg/controller/nodeipam/ipam/cidrset/cidr_set.go ErrCIDRRangeNoCIDRsRemaining
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
