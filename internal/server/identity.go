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
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/tunnel"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

// identify makes this server what it is in its cluster: its first or only one, one
// that joins another, or one of several over a datastore of the user's. It waits
// for these as long as it takes; `kedge status` answers meanwhile.
func identify(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, clock *pki.Clock) (certificates *pki.Server, summary *Summary, joined *join.ServerJoin, err error) {
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
	group.Add(newStatus(&group, node, cfg.Cluster, store, nil, nil, nil))
	group.Add(component.Func("identity", func(ctx context.Context, _ func()) error {
		if joined, err = joinOther(ctx, cfg, dir, clock); err == nil {
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
	configured := cfg.Token
	if _, err := os.Stat(dir.ServerToken()); err == nil && (usesEtcd(cfg, dir) || cfg.Server.Datastore.Endpoint != "") {
		configured = "" // the servers have agreed on one: join.SharedToken
	}
	if _, err := join.EnsureToken(dir, configured, certificates.ServerCA()); err != nil {
		return nil, nil, err
	}
	if err := join.EnsureAgentToken(dir, cfg.Server.AgentToken, certificates.ServerCA()); err != nil {
		return nil, nil, err
	}
	summary := &Summary{URL: "https://" + publicAddress(cfg.Server, node)}
	if cfg.Server.DisableAPIServer {
		return certificates, summary, nil
	}
	mode, err := strconv.ParseUint(cfg.Server.WriteKubeconfigMode, 8, 32)
	if err != nil {
		return nil, nil, fmt.Errorf("read write-kubeconfig-mode: %w", err)
	}
	summary.Kubeconfig = cfg.Server.WriteKubeconfig
	return certificates, summary, certificates.WriteKubeconfig(cfg.Server.WriteKubeconfig, os.FileMode(mode), "https://"+localAddress(cfg.Server))
}

// localAddress is HOST:PORT of this server on its own host.
func localAddress(cfg config.Server) string {
	local := "127.0.0.1"
	if cfg.BindAddress != "" {
		local = cfg.BindAddress
	}
	return net.JoinHostPort(local, strconv.Itoa(cfg.HTTPSListenPort))
}

// publicAddress is HOST:PORT of this server for others.
func publicAddress(cfg config.Server, node host.Node) string {
	return net.JoinHostPort(advertiseAddress(cfg, node).String(), strconv.Itoa(cfg.HTTPSListenPort))
}

// newStatus returns the component that answers `kedge status`. store, storage and api
// may be nil.
func newStatus(group *component.Group, node host.Node, cluster config.Cluster, store datastore.Datastore, storage *agent.Storage, api api, tunnels *tunnel.Server) component.Component {
	told := status.Config{Socket: datadir.StatusSocket, Node: node.Name, Components: group.Status, Datastore: store, Storage: storage.Report}
	if api != nil {
		told.Tunnels = tunnels.Nodes
		told.Cluster = clusterStatus(api.ClientConfig("system:kedge:status"), api.Name(), cluster.FlannelBackend == "none", group.Status)
	}
	return status.New(told)
}

// RotateToken replaces the join token of the cluster, and returns the new one: with
// several servers by the one that runs here, so that all learn it.
func RotateToken(ctx context.Context, cfg *config.Config) (string, error) {
	dir := datadir.Dir(cfg.DataDir)
	if keepsSQLite(dir) {
		if cfg.Token != "" {
			return "", errors.New("the token is set by the configuration: change token or token-file there, and restart the server")
		}
		return join.RotateToken(dir)
	}
	local := localAddress(cfg.Server)
	return join.AskRotate(ctx, dir, local, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, local)
	})
}

// serverIdentity is what other servers know this one by: its name for the reader,
// and its address, which no two servers have.
func serverIdentity(cfg config.Server, node host.Node) string {
	return node.Name + "_" + publicAddress(cfg, node)
}

// servingCertificate chooses by the name a client asks for: the API server has
// certificates of its own for what a user sets with --kube-apiserver-arg
// tls-sni-cert-key.
func servingCertificate(api api, certificates *pki.Server) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if certificate, err := api.Certificate(hello); certificate != nil || err != nil {
			return certificate, err
		}
		return certificates.ServingCertificate(hello)
	}
}
