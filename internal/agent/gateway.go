package agent

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/node/gateway"
	"github.com/kedge-dev/kedge/internal/node/gateway/dialing"
	"github.com/kedge-dev/kedge/internal/node/gateway/requests"
	"github.com/kedge-dev/kedge/internal/node/gateway/sockets"
)

const (
	// gatewayNotice is how long a gateway that stops still serves, while other nodes take its
	// clients over. It is a part of stopTimeout.
	gatewayNotice = 3 * time.Second
	// gatewayPatience is how long requests may last after that.
	gatewayPatience = 10 * time.Second
)

// gatewayConfig returns what serves Gateways and Ingresses on a node.
func gatewayConfig(cfg Config) gateway.Config {
	registerer := cfg.Metrics.Registerer(metrics.Kubelet)
	log := logrus.WithField("component", gateway.Name)
	return gateway.Config{
		Routes: cfg.Routes,
		Parts: func(podCIDRs func() []string) (gateway.Requests, gateway.Sockets) {
			dialer := dialing.Dialer{Services: cfg.Cluster.ServiceCIDRs(), Pods: cfg.Cluster.OwnPodCIDRs(), PodCIDRs: podCIDRs}
			answering := requests.New(requests.Config{
				Registerer: registerer, Dial: dialer.Dial,
				AccessLog: func(entry *requests.Entry) { log.Info(entry) },
			})
			return answering, sockets.New(sockets.Config{
				Serve: answering.Serve, Dial: dialer.Dial, Log: log, Registerer: registerer, Notice: gatewayNotice, Patience: gatewayPatience,
			})
		},
		Client:    cfg.Clients.ClientConfig(gateways.User, pki.NodeGroup(cfg.Node.Name)),
		Informers: cfg.Informers,
		NodeName:  cfg.Node.Name,
		Notice:    gatewayNotice,
	}
}
