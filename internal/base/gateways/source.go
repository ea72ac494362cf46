package gateways

import "net/netip"

// Source returns the address from which the gateway of a node calls pods: the first address of the
// node's pod CIDR that a host can have. The bridge of the node's pods has it too. No pod has it, and
// when the node calls a pod of another node, or masquerades a client of a NodePort, the kernel chooses
// another address. So in front of pods of other nodes, only the gateway has this one.
func Source(podCIDR netip.Prefix) netip.Addr { return podCIDR.Masked().Addr().Next() }
