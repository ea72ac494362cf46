// Package choice decides where a server keeps its objects, and makes that datastore. It
// refuses to leave a datastore in which there is something. The server package and the
// commands that work without a running kedge call it.
package choice

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

// Kind is where a server keeps its objects.
type Kind int

// The kinds of datastores. Only SQLite belongs to one server alone.
const (
	// SQLite is a file of this server's.
	SQLite Kind = iota
	// Member is etcd in this process, a member of those of all servers.
	Member
	// OtherMembers are the members of other servers: this one has disable-etcd.
	OtherMembers
	// Database is a PostgreSQL or MySQL of the user's.
	Database
	// OwnEtcd is an etcd of the user's.
	OwnEtcd
)

// Of returns where a server keeps its objects by its settings, and by what is on its
// disk: a server that has begun with etcd goes on with etcd.
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

// External tells whether the datastore is the user's.
func (k Kind) External() bool { return k == Database || k == OwnEtcd }

// Shared tells whether several servers use the datastore.
func (k Kind) Shared() bool { return k != SQLite }

// Store is where a server keeps its objects.
type Store struct {
	datastore.Datastore
	// Saved is the datastore if kedge can save and restore it: all but OtherMembers and
	// OwnEtcd.
	Saved datastore.Snapshotter
	// Member is the datastore if its kind is Member.
	Member *etcd.Member
	// Etcd is what other servers need of the datastore: of Member and OtherMembers.
	Etcd supervisor.Etcd
	// Token is the join token that servers share, and Authorities are what they replace
	// theirs by: of all kinds but SQLite.
	Token       *join.SharedToken
	Authorities *join.SharedAuthorities
	// follow finds the servers that have etcd: of OtherMembers.
	follow component.Component
}

// Add adds the datastore and what belongs to it. Its metrics are among those of the
// API server.
func (s *Store) Add(group *component.Group) error {
	if s.follow != nil {
		group.Add(s.follow)
	}
	group.Add(s)
	if s.Token != nil {
		group.Add(s.Token, s)
		group.Add(s.Authorities, s)
	}
	if s.Member == nil {
		return measure.Register(s)
	}
	return measure.Register(s, etcd.Metrics()...)
}

// UsesEtcd tells whether a server keeps its objects in etcd: once it has begun to,
// it goes on. A restore that was interrupted may have put the member away.
func UsesEtcd(cfg *config.Config, dir datadir.Dir) bool {
	return cfg.Server.ClusterInit || cfg.Agent.Server != "" || etcd.Exists(dir.Etcd()) || etcd.Exists(etcd.Prepared(dir.Restoring()))
}

// New makes the datastore, and moves what is in SQLite to etcd if that is to be used.
// joined is nil for a server that joins no other.
func New(ctx context.Context, kind Kind, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server, joined *join.ServerJoin) (*Store, error) {
	s := &Store{}
	switch kind {
	case SQLite:
		store := newSQLite(dir)
		return &Store{Datastore: store, Saved: store}, nil
	case Member:
		settings := etcdConfig(cfg, dir, node, certificates)
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

// Connect returns a client of the datastore, which the caller closes.
func (s *Store) Connect() (*clientv3.Client, error) { return datastore.NewClient(s.Endpoint()) }

func newSQLite(dir datadir.Dir) *sqlite.Datastore {
	return sqlite.New(sqlite.Config{Dir: dir.ServerDB(), Socket: datadir.DatastoreSocket})
}

func etcdConfig(cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) etcd.Config {
	return etcd.Config{
		Dir: dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Files: certificates.Etcd,
		Socket: datadir.DatastoreSocket, Public: cfg.Server.PublicAddress(node.IPs[0]),
	}
}

// Join makes this server one of the cluster of another, if it is told to. It also
// refuses what cannot be, before anything is changed.
func Join(ctx context.Context, cfg *config.Config, dir datadir.Dir, clock *pki.Clock) (*join.ServerJoin, error) {
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
	case cfg.Server.DisableControllerManager != cfg.Server.DisableScheduler && (theirs || member || UsesEtcd(cfg, dir)):
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

// Reset makes this server the only one of its cluster, and says what is to
// be done then.
func Reset(ctx context.Context, cfg *config.Config, dir datadir.Dir, node host.Node, certificates *pki.Server) error {
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
	url := "https://" + cfg.Server.PublicAddress(node.IPs[0])
	return fmt.Sprintf("On each other server: stop kedge, move %s away, and start it with --server %s and the token in %s here; "+
		"of those that do not come back, delete the nodes (kubectl delete node)", dir.Etcd(), url, dir.ServerToken())
}
