package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

// identify gives this server its place in a cluster: the first or only server, one that
// joins another, or one of several over the user's datastore. It waits for the other
// server or the datastore until ctx ends. Meanwhile `kedge status` answers.
func (r Resolved) identify(ctx context.Context, clock *pki.Clock, local *localapi.Server) (certificates *pki.Server, summary *Summary, joined *join.ServerJoin, err error) {
	var store datastore.Datastore
	if r.roles.objects.External() {
		if store, err = choice.NewExternal(r.cfg.Server.Datastore); err != nil {
			return nil, nil, nil, err
		}
	}
	begin := func() (err error) {
		certificates, summary, err = r.establish(clock)
		return err
	}
	ctx, done := context.WithCancel(ctx)
	defer done()
	var group component.Group
	group.Add(local.With(status.New(status.Config{Node: r.node.Name, Components: group.Status, Datastore: store})))
	group.Add(component.Func("identity", func(ctx context.Context, _ func()) error {
		if joined, err = r.choice.Join(ctx, clock); err == nil {
			if store == nil {
				err = begin()
			} else {
				err = choice.ShareSecrets(ctx, store, r.dir, r.cfg.Token, begin)
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

// establish makes what identifies a server: its certificates, the administrator's
// kubeconfig and the join token.
func (r Resolved) establish(clock *pki.Clock) (*pki.Server, *Summary, error) {
	cfg, dir, node := r.cfg, r.dir, r.node
	if err := errors.Join(dir.MakeServer(), dir.MakeAgent()); err != nil {
		return nil, nil, err
	}
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir:           dir,
		NodeName:      node.Name,
		NodeIPs:       node.IPs,
		ClusterDomain: cfg.Cluster.ClusterDomain,
		ServiceCIDRs:  cfg.Cluster.ServiceCIDRs(),
		SANs:          append([]string{cfg.Server.BindAddress, cfg.Server.AdvertiseAddress, cfg.Server.VIP}, cfg.Server.TLSSAN...),
		Clock:         clock,
		Etcd:          r.choice.UsesEtcd(),
	})
	if err != nil {
		return nil, nil, err
	}
	configured := cfg.Token
	if _, err := os.Stat(dir.ServerToken()); err == nil && r.roles.objects.Shared() {
		configured = "" // the servers share one token: join.SharedToken
	}
	if _, err := join.EnsureToken(dir, configured, certificates.ServerCA()); err != nil {
		return nil, nil, err
	}
	if err := join.LinkNodeToken(dir); err != nil {
		return nil, nil, err
	}
	if err := join.EnsureAgentToken(dir, cfg.Server.AgentToken, certificates.ServerCA()); err != nil {
		return nil, nil, err
	}
	summary := &Summary{URL: "https://" + cfg.Server.JoinAddress(node.IPs[0])}
	if !r.roles.api {
		return certificates, summary, nil
	}
	mode, err := strconv.ParseUint(cfg.Server.WriteKubeconfigMode, 8, 32)
	if err != nil {
		return nil, nil, fmt.Errorf("read write-kubeconfig-mode: %w", err)
	}
	summary.Kubeconfig = cfg.Server.WriteKubeconfig
	return certificates, summary, certificates.WriteKubeconfig(pki.KubeconfigFile{
		Path:   cfg.Server.WriteKubeconfig,
		Mode:   os.FileMode(mode),
		Group:  cfg.Server.WriteKubeconfigGroup,
		Name:   cfg.Server.WriteKubeconfigName,
		Server: "https://" + cfg.Server.LocalAddress(),
	})
}
