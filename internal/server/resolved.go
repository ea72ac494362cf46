package server

import (
	"errors"
	"net/netip"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

// Resolved says what the server on this host is: its settings, and what follows from them and from
// the files on its disk. Nothing else works that out again.
type Resolved struct {
	cfg    *config.Config
	dir    datadir.Dir
	node   host.Node
	choice choice.Choice
	roles  roles
}

// Resolve finds out what the server on this host is. It changes nothing.
func Resolve(cfg *config.Config) (Resolved, error) {
	r := resolveRoles(cfg)
	var err error
	r.node, err = r.resolveNode()
	return r, err
}

// resolveRoles does what Resolve does, without the node, which may be impossible to know.
func resolveRoles(cfg *config.Config) Resolved {
	choice := choice.Of(cfg)
	return Resolved{cfg: cfg, dir: choice.Dir, choice: choice, roles: rolesOf(cfg.Server, choice.Kind)}
}

// resolveNode decides the name and the addresses of the host, as host.ResolveNode does. It also
// works on a host without a network, if the server runs no node and its API listens only on a
// loopback address. Then the server has that address, because no other host reaches it anyway.
func (r Resolved) resolveNode() (host.Node, error) {
	ranges := r.cfg.Cluster.PodCIDRs()
	node, err := host.ResolveNode(r.cfg.Node, ranges)
	if !errors.Is(err, host.ErrNoRoute) {
		return node, err
	}
	bind, wrong := netip.ParseAddr(r.cfg.Server.BindAddress)
	if wrong != nil || !bind.IsLoopback() || bind.Is4() != ranges[0].Addr().Is4() || r.roles.node || r.roles.objects.Shared() {
		return node, err
	}
	name, err := host.NodeName(r.cfg.Node)
	return host.Node{Name: name, IPs: []netip.Addr{bind}}, err
}
