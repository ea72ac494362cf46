package agent

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/gateways"
	"github.com/kedge-dev/kedge/internal/base/metrics"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
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

// gateway serves Gateways and Ingresses.
func (n *node) gateway() component.Component {
	registerer := n.Metrics.Registerer(metrics.Kubelet)
	log := logrus.WithField("component", gateway.Name)
	settings := gateway.Config{
		Parts: func(podCIDRs func() []string) (gateway.Requests, gateway.Sockets) {
			dialer := dialing.Dialer{Services: n.Cluster.ServiceCIDRs(), Pods: n.Cluster.OwnPodCIDRs(), PodCIDRs: podCIDRs}
			answering := requests.New(requests.Config{
				Registerer: registerer, Dial: dialer.Dial,
				AccessLog: func(entry *requests.Entry) { log.Info(entry) },
			})
			return answering, sockets.New(sockets.Config{
				Serve: answering.Serve, Dial: dialer.Dial, Log: log, Registerer: registerer, Notice: gatewayNotice, Patience: gatewayPatience,
			})
		},
		Client:    n.user(gateways.User),
		Informers: n.API.Informers,
		NodeName:  n.Node.Name,
		Notice:    gatewayNotice,
	}
	if n.Cluster.Has(config.Gateway) {
		settings.Routes = follow(n, nodestream.Routes(), n.Server.Routes)
	}
	return gateway.New(settings)
}
