package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/kine"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/pki"
)

// state is where a server keeps its objects.
type state struct {
	datastore.Datastore
	// saved is the datastore if kedge can save and restore it.
	saved datastore.Snapshotter
	// member is the datastore if that is a member of etcd.
	member *etcd.Member
	// admit takes the members of other servers in; nil if there can be none.
	admit func(context.Context, bootstrap.MemberRequest) (bootstrap.MemberResponse, error)
}

// measure adds the datastore's metrics to those of the API server.
func (s *state) measure() error {
	if s.member == nil {
		return measure.Register(s)
	}
	return measure.Register(s, etcd.Metrics()...)
}

// usesEtcd tells whether a server keeps its objects in etcd: once it has begun to,
// it goes on.
func usesEtcd(cfg *config.Config, dir datadir.Dir) bool {
	return cfg.Server.ClusterInit || cfg.Agent.Server != "" || etcd.Exists(dir.Etcd())
}

// newState picks the datastore. joined is nil for a server that joins nobody.
func newState(cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server, joined *bootstrap.ServerJoin) (*state, error) {
	if cfg.Server.Datastore.Endpoint != "" {
		store, err := newExternal(cfg.Server.Datastore)
		return &state{Datastore: store}, err
	}
	if !usesEtcd(cfg, dir) {
		store := newSQLite(dir)
		return &state{Datastore: store, saved: store}, nil
	}
	settings := etcdConfig(dir, node, certificates)
	if joined != nil {
		settings.Join = joined.Member
	}
	member := etcd.New(settings)
	return &state{Datastore: member, member: member, admit: member.Admit}, nil
}

func newSQLite(dir datadir.Dir) *kine.Datastore {
	return kine.New(kine.Config{Dir: dir.ServerDB(), Socket: datadir.DatastoreSocket})
}

func etcdConfig(dir datadir.Dir, node host.Node, certificates *pki.Server) etcd.Config {
	return etcd.Config{Dir: dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Files: certificates.Etcd, Socket: datadir.DatastoreSocket}
}

// join makes this server one of the cluster of another, if it is told to. It also
// refuses what cannot be, before anything is changed.
func join(ctx context.Context, cfg *config.Config, dir datadir.Dir, clock *pki.Clock) (*bootstrap.ServerJoin, error) {
	member := etcd.Exists(dir.Etcd())
	if err := checkState(cfg, dir, member); err != nil {
		return nil, err
	}
	if cfg.Agent.Server == "" || cfg.Server.ClusterReset {
		return nil, nil
	}
	return bootstrap.JoinServer(ctx, bootstrap.ServerConfig{
		Server: cfg.Agent.Address(),
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, cfg.Agent.Address())
		},
		Token:   cfg.Token,
		Dir:     dir,
		Cluster: cfg.Cluster,
		Clock:   clock,
	}, member)
}

// checkState refuses to begin with etcd or a datastore of the user's own where
// there is another state, and with SQLite, as a cluster of its own, what has the
// authorities of another cluster.
func checkState(cfg *config.Config, dir datadir.Dir, member bool) error {
	_, noSQLite := os.Stat(dir.SQLite())
	_, alone := os.Stat(dir.EtcdTLS())
	theirs := cfg.Server.Datastore.Endpoint != ""
	switch {
	case theirs && (noSQLite == nil || member):
		// This node's pods would be those of the other cluster.
		return fmt.Errorf("this server keeps its state in %s, and does not take it along to datastore-endpoint: "+
			"leave datastore-endpoint out to go on with it, or move that folder away to leave that cluster", dir.ServerDB())
	case theirs || member:
		return nil
	case cfg.Server.ClusterReset:
		return fmt.Errorf("cluster-reset is for a server that has etcd, and there is none in %s", dir.Etcd())
	case cfg.Server.ClusterInit && noSQLite == nil:
		return fmt.Errorf("this server keeps its state in SQLite (%s), and cannot take it along to etcd yet: leave cluster-init out, or begin anew after `kedge uninstall`", dir.SQLite())
	case alone == nil && noSQLite != nil && !cfg.Server.ClusterInit && cfg.Agent.Server == "":
		return errors.New("this server was, or was to be, one of several, and has no state: start it with --server https://HOST:6443 and --token to join them, or with --cluster-init if it was to be the first")
	}
	return nil
}

// resetCluster makes this server the only one of its cluster, and says what is to
// be done then.
func resetCluster(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) error {
	if err := etcd.Reset(ctx, etcdConfig(dir, node, certificates)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("reset cluster: %w", err)
	}
	url := "https://" + net.JoinHostPort(advertiseAddress(cfg.Server, node).String(), fmt.Sprint(cfg.Server.HTTPSListenPort))
	logrus.Infof("This server is the only one of its cluster now. Start it without --cluster-reset. "+
		"On each other server: stop kedge, move %s away, and start it with --server %s and the token in %s here; "+
		"of those that do not come back, delete the nodes (kubectl delete node)", dir.Etcd(), url, dir.ServerToken())
	return nil
}
