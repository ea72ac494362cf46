// Package choice decides which datastore a server has, and makes it. It refuses to
// switch to another datastore if that would leave objects behind. The server package
// and the commands that work without a running kedge call it.
package choice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
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

// Kind says where a server keeps its objects.
type Kind int

// The kinds of datastores. Only SQLite belongs to one server alone.
const (
	// SQLite is a file on this server's disk.
	SQLite Kind = iota
	// Member is etcd in this process, one member of the servers' etcd cluster.
	Member
	// OtherMembers are the etcd members on other servers. This server has
	// disable-etcd.
	OtherMembers
	// Database is a PostgreSQL or MySQL database of the user.
	Database
	// OwnEtcd is an etcd of the user.
	OwnEtcd
)

// Of returns where a server keeps its objects. The settings and the files on its
// disk decide: a server that has begun with etcd continues with etcd.
func Of(cfg *config.Config, dir datadir.Dir) Kind {
	switch {
	case cfg.Server.Datastore.IsEtcd():
		return OwnEtcd
	case cfg.Server.Datastore.Endpoint != "":
		return Database
	case cfg.Server.DisableEtcd:
		return OtherMembers
	case UsesEtcd(cfg, dir):
		return Member
	default:
		return SQLite
	}
}

// External tells whether the datastore is the user's own, outside of kedge.
func (k Kind) External() bool { return k == Database || k == OwnEtcd }

// Shared tells whether several servers use the datastore.
func (k Kind) Shared() bool { return k != SQLite }

// Store is a server's datastore, with what the server does for it.
type Store struct {
	datastore.Datastore
	// Saved is the datastore if kedge can save and restore it: every kind except
	// OtherMembers and OwnEtcd.
	Saved datastore.Snapshotter
	// Member is the datastore if its kind is Member.
	Member *etcd.Member
	// Etcd is what other servers ask of this datastore. It is set for Member and
	// OtherMembers.
	Etcd supervisor.Etcd
	// Token is the join token that the servers share. Authorities are the prepared
	// authorities that will replace the present ones on all servers. Both are set for
	// all kinds except SQLite.
	Token       *join.SharedToken
	Authorities *join.SharedAuthorities
	// follow finds the servers that run etcd. It is set for OtherMembers.
	follow component.Component
}

// Add adds the datastore and its components to the group, and its metrics to registry.
func (s *Store) Add(group *component.Group, registry prometheus.Registerer) error {
	if s.follow != nil {
		group.Add(s.follow)
	}
	group.Add(s)
	if s.Token != nil {
		group.Add(s.Token, s)
		group.Add(s.Authorities, s)
	}
	return measure.Register(s, registry)
}

// UsesEtcd tells whether a server keeps its objects in etcd. A server that has
// begun with etcd continues with etcd. A restore that was interrupted may have
// moved the member's files away, so a prepared restore counts too.
func UsesEtcd(cfg *config.Config, dir datadir.Dir) bool {
	return cfg.Server.ClusterInit || cfg.Agent.Server != "" || etcd.Exists(dir.Etcd()) || etcd.Exists(etcd.Prepared(dir.Restoring()))
}

// New makes the datastore of the given kind. For Member, it first moves the objects
// of a SQLite database to etcd. joined is nil for a server that joins no other. onTrial says
// that the kedge from before must be able to read the data.
func New(ctx context.Context, kind Kind, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server, joined *join.ServerJoin, onTrial bool) (*Store, error) {
	s := &Store{}
	switch kind {
	case SQLite:
		store := newSQLite(dir)
		return &Store{Datastore: store, Saved: store}, nil
	case Member:
		settings := etcdConfig(cfg, dir, node, certificates)
		settings.Trial = onTrial
		if joined != nil {
			settings.Join = joined.Member
		} else if err := migrate(ctx, dir, settings); err != nil {
			return nil, err
		}
		member := etcd.New(settings)
		s.Datastore, s.Saved, s.Member, s.Etcd = member, member, member, member
	case OtherMembers:
		if err := s.useOtherMembers(cfg, dir, node, certificates); err != nil {
			return nil, err
		}
	default:
		store, err := NewExternal(cfg.Server.Datastore)
		if err != nil {
			return nil, err
		}
		s.Datastore = store
		s.Saved, _ = store.(datastore.Snapshotter)
	}
	s.Token = join.NewSharedToken(dir, cfg.Token, s.Connect)
	s.Authorities = join.NewSharedAuthorities(dir, s.Connect)
	return s, nil
}

// Connect returns a client of the datastore. The caller closes it.
func (s *Store) Connect() (*clientv3.Client, error) { return datastore.NewClient(s.Endpoint()) }

func newSQLite(dir datadir.Dir) *sqlite.Datastore {
	return sqlite.New(sqlite.Config{Dir: dir.ServerDB(), Socket: datadir.DatastoreSocket})
}

func etcdConfig(cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) etcd.Config {
	return etcd.Config{
		Dir: dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Files: certificates.Etcd,
		Socket: datadir.DatastoreSocket, Public: cfg.Server.PublicAddress(node.IPs[0]),
		Args: cfg.Server.EtcdArgs,
	}
}

// Join makes this server join the cluster of another server, if the settings name
// one. Before it changes anything, it refuses settings that contradict each other
// or the state on the disk. It returns nil if there is nothing to join.
func Join(ctx context.Context, cfg *config.Config, dir datadir.Dir, clock *pki.Clock) (*join.ServerJoin, error) {
	member := etcd.Exists(dir.Etcd())
	if err := checkState(cfg, dir, member); err != nil {
		return nil, err
	}
	warnEmpty(cfg, dir)
	if cfg.Agent.Server == "" || cfg.Server.ClusterReset {
		return nil, nil
	}
	// Without etcd, only the token file shows that the server has joined: it is
	// written after everything else.
	_, noToken := os.Stat(dir.ServerToken())
	return join.JoinServer(ctx, join.ServerConfig{
		Server: cfg.Agent.Address(),
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, cfg.Agent.Address())
		},
		Token:      cfg.Token,
		ShortToken: cfg.Agent.InsecureShortToken,
		Dir:        dir,
		Cluster:    cfg.Cluster,
		Clock:      clock,
	}, member || cfg.Server.DisableEtcd && noToken == nil)
}

// checkState refuses settings that do not fit the state on the disk: a datastore of
// the user where there is another state, another datastore where the state is in one
// of the user's, and a new cluster with SQLite where there are the authorities of
// another cluster.
func checkState(cfg *config.Config, dir datadir.Dir, member bool) error {
	_, noSQLite := os.Stat(dir.SQLite())
	_, alone := os.Stat(dir.EtcdTLS())
	_, elsewhere := os.Stat(dir.DatastoreEndpoint())
	theirs := cfg.Server.Datastore.Endpoint != ""
	switch {
	case cfg.Server.DisableControllerManager != cfg.Server.DisableScheduler && (theirs || member || UsesEtcd(cfg, dir)):
		return errors.New("disable-controller-manager and disable-scheduler must both be set or both be unset: with several servers, one elected server runs both the controllers and the scheduler")
	case theirs && (noSQLite == nil || member):
		// With datastore-endpoint, the pods of this node would belong to the
		// other cluster.
		return fmt.Errorf("this server keeps its state in %s, and kedge does not move it to datastore-endpoint: "+
			"remove datastore-endpoint to keep this state, or move that folder away to give it up", dir.ServerDB())
	case cfg.Server.DisableEtcd && (noSQLite == nil || member):
		return fmt.Errorf("this server keeps its state in %s, and would lose it with disable-etcd: remove disable-etcd. "+
			"Or make this a server without etcd: while other servers have the state, run `kubectl delete node` for its node, move that folder away and start it again", dir.ServerDB())
	case theirs || member:
		return nil
	case cfg.Server.DisableAPIServer && !cfg.Server.ClusterInit && cfg.Agent.Server == "":
		return errors.New("disable-apiserver needs embedded etcd, and this server uses SQLite, which only one server can use: " +
			"add --cluster-init if it is the first of several servers, or --server https://HOST:6443 and --token to join them")
	case cfg.Server.ClusterReset:
		return fmt.Errorf("cluster-reset needs embedded etcd, and there are no data of etcd in %s: remove cluster-reset", dir.Etcd())
	case elsewhere == nil && noSQLite != nil:
		return fmt.Errorf("this server keeps its state in a datastore of your own: set datastore-endpoint again, "+
			"or move %s away to leave that cluster", filepath.Dir(dir.DatastoreEndpoint()))
	case alone == nil && noSQLite != nil && !cfg.Server.ClusterInit && cfg.Agent.Server == "":
		return errors.New("this server belongs to a cluster of several servers, and its disk has no state: start it with --server https://HOST:6443 and --token to join them, or with --cluster-init if it is to be the first")
	}
	return nil
}

// warnEmpty warns if a new cluster is about to begin on a server that had one before. Such a
// server has the join token that it made at its first start, and has no state.
func warnEmpty(cfg *config.Config, dir datadir.Dir) {
	elsewhere := cfg.Agent.Server != "" || cfg.Server.Datastore.Endpoint != ""
	if elsewhere || etcd.Exists(dir.Etcd()) || etcd.Exists(etcd.Prepared(dir.Restoring())) {
		return
	}
	_, noToken := os.Stat(dir.ServerToken())
	_, noSQLite := os.Stat(dir.SQLite())
	if noToken == nil && errors.Is(noSQLite, fs.ErrNotExist) {
		logrus.WithField("component", "datastore").Warnf("This server had a cluster, and %s has no state of it any more: an empty cluster begins now. "+
			"To get the cluster back, stop kedge, choose a snapshot of `kedge snapshot list`, and run `kedge snapshot restore NAME`", dir.ServerDB())
	}
}

// Reset makes this server the only etcd member of its cluster, and logs what the
// user has to do on the other servers.
func Reset(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) error {
	if err := etcd.Reset(ctx, etcdConfig(cfg, dir, node, certificates)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("reset cluster: %w", err)
	}
	logrus.Infof("This server is now the only one of its cluster. Start it without --cluster-reset. %s", joinAnew(cfg, dir, node))
	return nil
}

// joinAnew says what to do on the other servers after this server has become the
// only one of its cluster.
func joinAnew(cfg *config.Config, dir datadir.Dir, node host.Node) string {
	url := "https://" + cfg.Server.PublicAddress(node.IPs[0])
	return fmt.Sprintf("On each other server: stop kedge, move %s away, and start it with --server %s and the token in %s here; "+
		"run `kubectl delete node` for each server that will not come back", dir.Etcd(), url, dir.ServerToken())
}
