package agent

import (
	"time"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/node/gateway"
)

// gatewayNotice is how long a gateway that stops still serves, while other nodes take its
// clients over. It is a part of stopTimeout.
const gatewayNotice = 3 * time.Second

// gatewayConfig returns what serves Gateways and Ingresses on a node.
func gatewayConfig(cfg Config) gateway.Config {
	return gateway.Config{
		Routes:    cfg.Routes,
		Client:    cfg.Clients.ClientConfig(gateways.User, pki.NodeGroup(cfg.Node.Name)),
		Informers: cfg.Informers,
		NodeName:  cfg.Node.Name,
		Notice:    gatewayNotice,
	}
}
