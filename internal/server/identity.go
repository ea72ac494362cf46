package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/component"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/controlplane"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/pki"
)

// identify makes this server what it is in its cluster: its first or only one, one
// that joins another, or one of several over a datastore of the user's. It waits
// for these as long as it takes; `kedge status` answers meanwhile.
func identify(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, clock *pki.Clock) (certificates *pki.Server, summary *Summary, joined *bootstrap.ServerJoin, err error) {
	var store datastore.Datastore
	if cfg.Server.Datastore.Endpoint != "" {
		if store, err = newExternal(cfg.Server.Datastore); err != nil {
			return nil, nil, nil, err
		}
	}
	begin := func() (err error) {
		certificates, summary, err = establish(cfg, dir, node, clock)
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	var group component.Group
	group.Add(agent.NewStatus(&group, node, store))
	group.Add(component.Func("identity", func(ctx context.Context, _ func()) error {
		if joined, err = join(ctx, cfg, dir, clock); err == nil {
			if store == nil {
				err = begin()
			} else {
				err = shareSecrets(ctx, store, dir, cfg.Token, begin)
			}
		}
		done()
		<-ctx.Done()
		return nil
	}))
	if failed := group.Run(ctx); failed != nil {
		err = failed
	}
	return certificates, summary, joined, err
}

// establish makes what a server is known by: its certificates, the
// administrator's kubeconfig and the join token.
func establish(cfg *config.Config, dir datadir.Dir, node host.Node, clock *pki.Clock) (*pki.Server, *Summary, error) {
	if err := errors.Join(dir.MakeServer(), dir.MakeAgent()); err != nil {
		return nil, nil, err
	}
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir:           dir,
		NodeName:      node.Name,
		NodeIPs:       node.IPs,
		ClusterDomain: cfg.Cluster.ClusterDomain,
		ServiceCIDRs:  cfg.Cluster.ServiceCIDRs(),
		SANs:          append([]string{cfg.Server.BindAddress, cfg.Server.AdvertiseAddress}, cfg.Server.TLSSAN...),
		Clock:         clock,
		Etcd:          usesEtcd(cfg, dir),
	})
	if err != nil {
		return nil, nil, err
	}
	if _, err := bootstrap.EnsureToken(dir, cfg.Token, certificates.ServerCA()); err != nil {
		return nil, nil, err
	}
	if err := bootstrap.EnsureAgentToken(dir, cfg.Server.AgentToken, certificates.ServerCA()); err != nil {
		return nil, nil, err
	}
	mode, err := strconv.ParseUint(cfg.Server.WriteKubeconfigMode, 8, 32)
	if err != nil {
		return nil, nil, fmt.Errorf("read write-kubeconfig-mode: %w", err)
	}
	port := strconv.Itoa(cfg.Server.HTTPSListenPort)
	local := "127.0.0.1"
	if cfg.Server.BindAddress != "" {
		local = cfg.Server.BindAddress
	}
	err = certificates.WriteKubeconfig(cfg.Server.WriteKubeconfig, os.FileMode(mode), "https://"+net.JoinHostPort(local, port))
	if err != nil {
		return nil, nil, err
	}
	return certificates, &Summary{
		URL:        "https://" + net.JoinHostPort(advertiseAddress(cfg.Server, node).String(), port),
		Kubeconfig: cfg.Server.WriteKubeconfig,
		TokenFile:  dir.ServerToken(),
	}, nil
}

// serverIdentity is what other servers know this one by: its name for the reader,
// and its address, which no two servers have.
func serverIdentity(cfg config.Server, node host.Node) string {
	return node.Name + "_" + net.JoinHostPort(advertiseAddress(cfg, node).String(), strconv.Itoa(cfg.HTTPSListenPort))
}

// servingCertificate chooses by the name a client asks for: the API server has
// certificates of its own for what a user sets with --kube-apiserver-arg
// tls-sni-cert-key.
func servingCertificate(api *controlplane.APIServer, certificates *pki.Server) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certificate, err := api.Certificate(hello); certificate != nil || err != nil {
			return certificate, err
		}
		return certificates.ServingCertificate(hello)
	}
}
