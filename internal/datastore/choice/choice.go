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

// Choice is where a server keeps its objects, with the settings on which that depends.
type Choice struct {
	Kind    Kind
	Dir     datadir.Dir
	Server  config.Server
	Agent   config.Agent
	Cluster config.Cluster
	Token   string
	// NodeName is the setting node-name.
	NodeName string
}

// Of returns where a server keeps its objects. The settings and the files on its
// disk decide: a server that has begun with etcd continues with etcd.
func Of(cfg *config.Config) Choice {
	c := Choice{
		Dir: datadir.Dir(cfg.DataDir), Server: cfg.Server, Agent: cfg.Agent, Cluster: cfg.Cluster,
		Token: cfg.Token, NodeName: cfg.Node.NodeName,
	}
	switch {
	case cfg.Server.Datastore.IsEtcd():
		c.Kind = OwnEtcd
	case cfg.Server.Datastore.Endpoint != "":
		c.Kind = Database
	case cfg.Server.DisableEtcd:
		c.Kind = OtherMembers
	case c.UsesEtcd():
		c.Kind = Member
	}
	return c
}

// IsEtcd tells whether the datastore is an etcd.
func (k Kind) IsEtcd() bool { return k == Member || k == OtherMembers || k == OwnEtcd }

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
func (c Choice) UsesEtcd() bool {
	return c.Server.ClusterInit || c.Agent.Server != "" || etcd.Exists(c.Dir.Etcd()) || etcd.Exists(etcd.Prepared(c.Dir.Restoring()))
}

// New makes the datastore. If this server becomes a Member, New first moves the objects of a
// SQLite database to etcd. joined is nil for a server that joins no other. onTrial says
// that the kedge from before must be able to read the data.
func (c Choice) New(ctx context.Context, node host.Node, certificates *pki.Server, joined *join.ServerJoin, onTrial bool) (*Store, error) {
	s := &Store{}
	switch c.Kind {
	case SQLite:
		store := newSQLite(c.Dir)
		return &Store{Datastore: store, Saved: store}, nil
	case Member:
		settings := c.etcdConfig(node, certificates)
		settings.Trial = onTrial
		if joined != nil {
			settings.Join = joined.Member
		} else if err := migrate(ctx, c.Dir, settings); err != nil {
			return nil, err
		}
		member := etcd.New(settings)
		s.Datastore, s.Saved, s.Member, s.Etcd = member, member, member, member
	case OtherMembers:
		if err := s.useOtherMembers(c.Agent.Address(), c.Dir.EtcdServers(), node.Name, certificates); err != nil {
			return nil, err
		}
	default:
		store, err := NewExternal(c.Server.Datastore)
		if err != nil {
			return nil, err
		}
		s.Datastore = store
		s.Saved, _ = store.(datastore.Snapshotter)
	}
	s.Token = join.NewSharedToken(c.Dir, c.Token, s.Connect)
	s.Authorities = join.NewSharedAuthorities(c.Dir, s.Connect)
	return s, nil
}

// Connect returns a client of the datastore. The caller closes it.
func (s *Store) Connect() (*clientv3.Client, error) { return datastore.NewClient(s.Endpoint()) }

func newSQLite(dir datadir.Dir) *sqlite.Datastore {
	return sqlite.New(sqlite.Config{Dir: dir.ServerDB(), Socket: datadir.DatastoreSocket})
}

func (c Choice) etcdConfig(node host.Node, certificates *pki.Server) etcd.Config {
	return etcd.Config{
		Dir: c.Dir.Etcd(), Node: node.Name, Address: node.IPs[0].String(), Files: certificates.Etcd,
		Socket: datadir.DatastoreSocket, Public: c.Server.PublicAddress(node.IPs[0]),
		Args: c.Server.EtcdArgs,
	}
}

// Join makes this server join the cluster of another server, if the settings name
// one. Before it changes anything, it refuses settings that contradict each other
// or the state on the disk. It returns nil if there is nothing to join.
func (c Choice) Join(ctx context.Context, clock *pki.Clock) (*join.ServerJoin, error) {
	member := etcd.Exists(c.Dir.Etcd())
	if err := c.checkState(member); err != nil {
		return nil, err
	}
	c.warnEmpty()
	if c.Agent.Server == "" || c.Server.ClusterReset {
		return nil, nil
	}
	// Without etcd, only the token file shows that the server has joined: it is
	// written after everything else.
	_, noToken := os.Stat(c.Dir.ServerToken())
	return join.JoinServer(ctx, join.ServerConfig{
		Server: c.Agent.Address(),
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, c.Agent.Address())
		},
		Token:      c.Token,
		ShortToken: c.Agent.InsecureShortToken,
		Dir:        c.Dir,
		Cluster:    c.Cluster,
		Clock:      clock,
	}, member || c.Server.DisableEtcd && noToken == nil)
}

// checkState refuses settings that do not fit the state on the disk: a datastore of
// the user where there is another state, another datastore where the state is in one
// of the user's, and a new cluster with SQLite where there are the authorities of
// another cluster.
func (c Choice) checkState(member bool) error {
	_, noSQLite := os.Stat(c.Dir.SQLite())
	_, alone := os.Stat(c.Dir.EtcdTLS())
	_, elsewhere := os.Stat(c.Dir.DatastoreEndpoint())
	theirs := c.Server.Datastore.Endpoint != ""
	switch {
	case c.Server.DisableControllerManager != c.Server.DisableScheduler && (theirs || member || c.UsesEtcd()):
		return errors.New("disable-controller-manager and disable-scheduler must both be set or both be unset: with several servers, one elected server runs both the controllers and the scheduler")
	case theirs && (noSQLite == nil || member):
		// With datastore-endpoint, the pods of this node would belong to the
		// other cluster.
		return fmt.Errorf("this server keeps its state in %s, and kedge does not move it to datastore-endpoint: "+
			"remove datastore-endpoint to keep this state, or move that folder away to give it up", c.Dir.ServerDB())
	case c.Server.DisableEtcd && (noSQLite == nil || member):
		return fmt.Errorf("this server keeps its state in %s, and would lose it with disable-etcd: remove disable-etcd. "+
			"Or make this a server without etcd: while other servers have the state, run `kubectl delete node` for its node, move that folder away and start it again", c.Dir.ServerDB())
	case theirs || member:
		return nil
	case c.Server.DisableAPIServer && !c.Server.ClusterInit && c.Agent.Server == "":
		return errors.New("disable-apiserver needs embedded etcd, and this server uses SQLite, which only one server can use: " +
			"add --cluster-init if it is the first of several servers, or --server https://HOST:6443 and --token to join them")
	case c.Server.ClusterReset:
		return fmt.Errorf("cluster-reset needs embedded etcd, and there are no data of etcd in %s: remove cluster-reset", c.Dir.Etcd())
	case elsewhere == nil && noSQLite != nil:
		return fmt.Errorf("this server keeps its state in a datastore of your own: set datastore-endpoint again, "+
			"or move %s away to leave that cluster", filepath.Dir(c.Dir.DatastoreEndpoint()))
	case alone == nil && noSQLite != nil && !c.Server.ClusterInit && c.Agent.Server == "":
		return errors.New("this server belongs to a cluster of several servers, and its disk has no state: start it with --server https://HOST:6443 and --token to join them, or with --cluster-init if it is to be the first")
	}
	return nil
}

// warnEmpty warns if a new cluster is about to begin on a server that had one before. Such a
// server has the join token that it made at its first start, and has no state.
func (c Choice) warnEmpty() {
	elsewhere := c.Agent.Server != "" || c.Server.Datastore.Endpoint != ""
	if elsewhere || etcd.Exists(c.Dir.Etcd()) || etcd.Exists(etcd.Prepared(c.Dir.Restoring())) {
		return
	}
	_, noToken := os.Stat(c.Dir.ServerToken())
	_, noSQLite := os.Stat(c.Dir.SQLite())
	if noToken == nil && errors.Is(noSQLite, fs.ErrNotExist) {
		logrus.WithField("component", "datastore").Warnf("This server had a cluster, and %s has no state of it any more: an empty cluster begins now. "+
			"To get the cluster back, stop kedge, choose a snapshot of `kedge snapshot list`, and run `kedge snapshot restore NAME`", c.Dir.ServerDB())
	}
}

// Reset makes this server the only etcd member of its cluster, and logs what the
// user has to do on the other servers.
func (c Choice) Reset(ctx context.Context, node host.Node, certificates *pki.Server) error {
	if err := etcd.Reset(ctx, c.etcdConfig(node, certificates)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("reset cluster: %w", err)
	}
	logrus.Infof("This server is now the only one of its cluster. Start it without --cluster-reset. %s", c.joinAnew(node))
	return nil
}

// joinAnew says what to do on the other servers after this server has become the
// only one of its cluster.
func (c Choice) joinAnew(node host.Node) string {
	url := "https://" + c.Server.PublicAddress(node.IPs[0])
	return fmt.Sprintf("On each other server: stop kedge, move %s away, and start it with --server %s and the token in %s here; "+
		"run `kubectl delete node` for each server that will not come back", c.Dir.Etcd(), url, c.Dir.ServerToken())
}
