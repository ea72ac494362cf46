package config

import (
	"net"
	"net/netip"
	"strconv"
)

// Advertised returns the address of this server's API that pods and nodes are told.
// node is the first address of the server's node.
func (s *Server) Advertised(node netip.Addr) netip.Addr {
	if s.AdvertiseAddress != "" {
		return netip.MustParseAddr(s.AdvertiseAddress)
	}
	return node
}

// PublicAddress returns HOST:PORT of this server for other hosts. node is the first
// address of the server's node.
func (s *Server) PublicAddress(node netip.Addr) string {
	return net.JoinHostPort(s.Advertised(node).String(), strconv.Itoa(s.HTTPSListenPort))
}

// JoinAddress returns HOST:PORT at which other hosts join and reach the API: that of VIP, or
// of this server.
func (s *Server) JoinAddress(node netip.Addr) string {
	if s.VIP != "" {
		return net.JoinHostPort(s.VIP, strconv.Itoa(s.HTTPSListenPort))
	}
	return s.PublicAddress(node)
}

// LocalAddress returns HOST:PORT of this server on its own host.
func (s *Server) LocalAddress() string {
	local := "127.0.0.1"
	if s.BindAddress != "" {
		local = s.BindAddress
	}
	return net.JoinHostPort(local, strconv.Itoa(s.HTTPSListenPort))
}

// OwnPodCIDRs returns what bounds the addresses of pods, or nil if a network of the
// user's gives pods their addresses.
func (c *Cluster) OwnPodCIDRs() []netip.Prefix {
	if c.FlannelBackend == "none" {
		return nil
	}
	return c.PodCIDRs()
}
