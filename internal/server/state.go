package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/supervisor"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// state is where a server keeps its objects.
type state struct {
	datastore.Datastore
	// saved is the datastore if kedge can save and restore it.
	saved datastore.Snapshotter
	// member is the datastore if that is a member of etcd.
	member *etcd.Member
	// etcd is what other servers need of it; nil if there can be none, or they have
	// the datastore without this one.
	etcd supervisor.Etcd
	// follow finds the servers that have etcd, for one that has not.
	follow component.Component
	// token is the join token, where servers share the datastore, and authorities are
	// what they then replace theirs by.
	token       *join.SharedToken
	authorities *join.SharedAuthorities
}

// add adds the datastore and what belongs to it. Its metrics are among those of the
// API server.
func (s *state) add(group *component.Group) error {
	if s.follow != nil {
		group.Add(s.follow)
	}
	group.Add(s)
	if s.token != nil {
		group.Add(s.token, s)
		group.Add(s.authorities, s)
	}
	if s.member == nil {
		return measure.Register(s)
	}
	return measure.Register(s, etcd.Metrics()...)
}

// usesEtcd tells whether a server keeps its objects in etcd: once it has begun to,
// it goes on. A restore that was interrupted may have put the member away.
func usesEtcd(cfg *config.Config, dir datadir.Dir) bool {
	return cfg.Server.ClusterInit || cfg.Agent.Server != "" || etcd.Exists(dir.Etcd()) || etcd.Exists(etcd.Prepared(dir.Restoring()))
}

// newState picks the datastore. joined is nil for a server that joins nobody.
func newState(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server, joined *join.ServerJoin) (*state, error) {
	var s *state
	switch {
	case cfg.Server.Datastore.Endpoint != "":
		store, err := newExternal(cfg.Server.Datastore)
		if err != nil {
			return nil, err
		}
		s = &state{Datastore: store}
		s.saved, _ = store.(datastore.Snapshotter)
	case cfg.Server.DisableEtcd:
		var err error
		if s, err = newEtcdElsewhere(cfg, dir, node, certificates); err != nil {
			return nil, err
		}
	case !usesEtcd(cfg, dir):
		store := newSQLite(dir)
		return &state{Datastore: store, saved: store}, nil
	default:
		settings := etcdConfig(cfg, dir, node, certificates)
		if joined != nil {
			settings.Join = joined.Member
		} else if err := migrate(ctx, dir, settings); err != nil {
			return nil, err
		}
		member := etcd.New(settings)
		s = &state{Datastore: member, saved: member, member: member, etcd: member}
	}
	client := func() (*clientv3.Client, error) { return datastore.NewClient(s.Endpoint()) }
	s.token = join.NewSharedToken(dir, cfg.Token, client)
	s.authorities = join.NewSharedAuthorities(dir, client)
	return s, nil
}

func newSQLite(dir datadir.Dir) *sqlite.Datastore {
	return sqlite.New(sqlite.Config{Dir: dir.ServerDB(), Socket: datadir.DatastoreSocket})
}

func etcdConfig(cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) etcd.Config {
	return etcd.Config{
		Dir: dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Files: certificates.Etcd,
		Socket: datadir.DatastoreSocket, Public: publicAddress(cfg.Server, node),
	}
}

// joinOther makes this server one of the cluster of another, if it is told to. It also
// refuses what cannot be, before anything is changed.
func joinOther(ctx context.Context, cfg *config.Config, dir datadir.Dir, clock *pki.Clock) (*join.ServerJoin, error) {
	member := etcd.Exists(dir.Etcd())
	if err := checkState(cfg, dir, member); err != nil {
		return nil, err
	}
	if cfg.Agent.Server == "" || cfg.Server.ClusterReset {
		return nil, nil
	}
	// One without etcd has nothing that tells that it has joined but the token, which
	// is kept after all else.
	_, noToken := os.Stat(dir.ServerToken())
	return join.JoinServer(ctx, join.ServerConfig{
		Server: cfg.Agent.Address(),
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, cfg.Agent.Address())
		},
		Token:   cfg.Token,
		Dir:     dir,
		Cluster: cfg.Cluster,
		Clock:   clock,
	}, member || cfg.Server.DisableEtcd && noToken == nil)
}

// checkState refuses to begin with a datastore of the user's own where there is
// another state, with anything else where the state is in such a datastore, and with
// SQLite, as a cluster of its own, what has the authorities of another cluster.
func checkState(cfg *config.Config, dir datadir.Dir, member bool) error {
	_, noSQLite := os.Stat(dir.SQLite())
	_, alone := os.Stat(dir.EtcdTLS())
	_, elsewhere := os.Stat(dir.DatastoreEndpoint())
	theirs := cfg.Server.Datastore.Endpoint != ""
	switch {
	case cfg.Server.DisableControllerManager != cfg.Server.DisableScheduler && (theirs || member || usesEtcd(cfg, dir)):
		return errors.New("where there are several servers one of them runs controllers and scheduler, both: disable-controller-manager and disable-scheduler go together there")
	case theirs && (noSQLite == nil || member):
		// This node's pods would be those of the other cluster.
		return fmt.Errorf("this server keeps its state in %s, and does not take it along to datastore-endpoint: "+
			"leave datastore-endpoint out to go on with it, or move that folder away to leave that cluster", dir.ServerDB())
	case cfg.Server.DisableEtcd && (noSQLite == nil || member):
		return fmt.Errorf("this server keeps its state in %s, and disable-etcd would leave that: leave disable-etcd out; "+
			"or, to make it one without etcd, delete its node (kubectl delete node) while other servers have the state, move that folder away and start it again", dir.ServerDB())
	case theirs || member:
		return nil
	case cfg.Server.DisableAPIServer && !cfg.Server.ClusterInit && cfg.Agent.Server == "":
		return errors.New("disable-apiserver leaves a server for embedded etcd only, and this one has SQLite, which is for one server: " +
			"add --cluster-init for the first of several, or --server https://HOST:6443 and --token to join them")
	case cfg.Server.ClusterReset:
		return fmt.Errorf("cluster-reset is for a server that has etcd, and there is none in %s", dir.Etcd())
	case elsewhere == nil && noSQLite != nil:
		return fmt.Errorf("this server keeps its state in a datastore of yours: give it datastore-endpoint again, "+
			"or move %s away to leave that cluster and begin a new one, or join another", filepath.Dir(dir.DatastoreEndpoint()))
	case alone == nil && noSQLite != nil && !cfg.Server.ClusterInit && cfg.Agent.Server == "":
		return errors.New("this server was, or was to be, one of several, and has no state: start it with --server https://HOST:6443 and --token to join them, or with --cluster-init if it was to be the first")
	}
	return nil
}

// resetCluster makes this server the only one of its cluster, and says what is to
// be done then.
func resetCluster(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) error {
	if err := etcd.Reset(ctx, etcdConfig(cfg, dir, node, certificates)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("reset cluster: %w", err)
	}
	logrus.Infof("This server is the only one of its cluster now. Start it without --cluster-reset. %s", joinAnew(cfg, dir, node))
	return nil
}

// joinAnew is what to do on the other servers where this one is the only one of
// its cluster again.
func joinAnew(cfg *config.Config, dir datadir.Dir, node host.Node) string {
	url := "https://" + publicAddress(cfg.Server, node)
	return fmt.Sprintf("On each other server: stop kedge, move %s away, and start it with --server %s and the token in %s here; "+
		"of those that do not come back, delete the nodes (kubectl delete node)", dir.Etcd(), url, dir.ServerToken())
}
