// Package etcd is the datastore of several servers: a member of an etcd cluster in
// this process. The server package runs it, and has it admit the members of servers
// that join. The package also makes a cluster of one again (Reset), and turns the
// objects of another datastore into a member (Migrate).
//
// A member joins as a learner, which has no vote. When it has caught up it makes
// itself a voter, and only then it is ready. The leader removes the members whose
// nodes were deleted, and learners that never came (tidy.go). The decisions are in
// members.go, which does not depend on etcd.
//
// The API server calls the member without a connection. Other members reach it at
// port 2380 of the node's address, clients on this host at 127.0.0.1:2379. Both need
// certificates of the cluster's authorities for etcd (pki.EtcdFiles). Servers
// without a member call it through the supervisor's port (remote.go). etcdctl needs
// no certificate on the socket, as with the other datastores.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"google.golang.org/grpc"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/kvapi/sizes"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// name is the name of the component.
const name = "datastore"

const (
	// PeerPort is the port at which members reach each other.
	PeerPort = "2380"
	// clientURL is where clients on this host that do not know the socket reach
	// the member. It cannot be reached from outside.
	clientURL = "https://127.0.0.1:2379"
)

const (
	// The leader sends a heartbeat at this interval. If there is none, the
	// members elect another leader after election, or at most after twice that.
	// For that long the API stands still when the leader dies. A disk may be busy
	// for as long without causing an election.
	heartbeat = 400 * time.Millisecond
	election  = 2 * time.Second
	// snapshotCount is the number of changes after which etcd cuts its log: the
	// log is in memory too.
	snapshotCount = 10_000
	// quota limits the size of the database in bytes. It is the largest size that
	// etcd is tested with. A database that reaches it refuses all writes until a
	// person repairs it.
	quota = 8 << 30
	// progress is the interval at which watches without events learn the current
	// revision. It is shorter than the time that compaction keeps revisions, so
	// that watches can be resumed.
	progress = time.Minute
	// slowRequest is the duration from which a request is logged as slow.
	slowRequest = time.Second
	// retry is the pause between attempts that depend on other members.
	retry = time.Second
	// slowStart is the interval at which a slow start logs what it waits for.
	slowStart = 20 * time.Second
)

// Config is what New needs.
type Config struct {
	// Dir is the folder of the member's data.
	Dir string
	// Node is the name of the node. The member's name begins with it.
	Node string
	// Address is the IP address of the node.
	Address string
	Files   pki.EtcdFiles
	// Public is HOST:PORT where servers without etcd reach this member (ServeHTTP),
	// or empty if they do not. The other members announce it too.
	Public string
	// Socket is the path of the unix socket for etcdctl. Only root can open its
	// folder.
	Socket string
	// Args are the user's arguments of upstream's etcd, as name=value.
	Args []string
	// Trial says that the kedge from before has to be able to read the data.
	Trial bool
	// Join asks the cluster to admit this member, and waits as long as that takes.
	// If it is nil, the member begins a new cluster. It is not called if there is
	// already a member in Dir.
	Join func(context.Context, join.MemberRequest) (join.MemberResponse, error)
}

// Member is a datastore.Datastore.
type Member struct {
	cfg Config
	log *logrus.Entry
	// server is nil until the member runs.
	server atomic.Pointer[etcdserver.EtcdServer]
	// remote answers calls over the network. It is nil until the member is ready.
	remote atomic.Pointer[grpc.Server]
	peers  *prober
	meter  *measure.Meter
	// syncs is etcd's histogram of how long its syncs of the disk take.
	syncs prometheus.Metric
	// clientURL is for clients on this host. It is a field because tests run several
	// members on one host.
	clientURL string
	outage    outage
	// failed receives the error if etcd cannot continue.
	failed chan error
	// poked wakes tidy.
	poked loop.Changes
	// admitting is held while a member is added. raft silently drops the second
	// of two simultaneous changes, and its caller would wait in vain.
	admitting sync.Mutex

	mu sync.Mutex
	// deleted are the members that have to be removed because their nodes were
	// deleted, and since when.
	deleted map[uint64]time.Time
}

// New returns the member whose data are in cfg.Dir. It starts nothing.
func New(cfg Config) *Member {
	log := logrus.WithField("component", name)
	return &Member{
		cfg: cfg,
		log: log,
		meter: measure.NewMeter(log, fmt.Sprintf("If commits take long, the disk under %s is slow: look at `iostat -x 1` and `dmesg`. "+
			"If not, check the other servers and the network to them (`kedge status`)", cfg.Dir)),
		syncs:     registeredSyncs(),
		peers:     newProber(cfg.Files),
		clientURL: clientURL,
		failed:    make(chan error, 1),
		poked:     loop.NewChanges(),
		deleted:   map[uint64]time.Time{},
	}
}

// Exists tells whether there is a member in the folder dir.
func Exists(dir string) bool {
	logs, _ := filepath.Glob(filepath.Join(dir, "member", "wal", "*.wal"))
	return len(logs) > 0
}

// Name implements component.Component.
func (m *Member) Name() string { return name }

// Endpoint implements datastore.Datastore.
func (m *Member) Endpoint() datastore.Endpoint {
	return datastore.Endpoint{
		URL:       m.clientURL,
		CAFile:    m.cfg.Files.ServerCAFile,
		CertFile:  m.cfg.Files.ClientCertFile,
		KeyFile:   m.cfg.Files.ClientKeyFile,
		NewClient: func() *kubernetes.Client { return m.newClient(m.server.Load()) },
		Shared:    true,
	}
}

func (m *Member) peerURL() string { return "https://" + net.JoinHostPort(m.cfg.Address, PeerPort) }

// Run implements component.Component. It is ready once the member has a vote and
// the cluster has a leader. It fails if this server is no longer a member.
func (m *Member) Run(ctx context.Context, ready func()) error {
	initial, existing, err := m.initialCluster(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	config, err := m.config(initial, existing)
	if err != nil {
		return err
	}
	etcd, err := m.start(config)
	if err != nil {
		return err
	}
	defer m.peers.http.CloseIdleConnections()
	m.server.Store(etcd.Server)

	err = m.await(ctx, etcd.Server)
	if err == nil {
		ready()
		err = m.serve(ctx, etcd)
	}
	if errors.As(err, &fatalError{}) {
		return err // without stopping etcd, parts of which may hang
	}
	stop(etcd)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// stop stops etcd. If etcd is not ready yet, its Close would wait for listeners
// that themselves wait until etcd is ready or stops (server/v3/embed/serve.go).
// HardStop ends that wait.
//
//upstream:relies-on go.etcd.io/etcd/server/v3/embed/serve.go serveCtx.serve
//upstream:relies-on go.etcd.io/etcd/server/v3/embed/etcd.go Etcd.Close
func stop(etcd *embed.Etcd) {
	select {
	case <-etcd.Server.ReadyNotify():
	default:
		etcd.Server.HardStop()
	}
	etcd.Close()
}

// fatalError is an error after which etcd cannot continue.
type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

// serve runs the member's background work until ctx or the member ends.
func (m *Member) serve(ctx context.Context, etcd *embed.Etcd) error {
	looping, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	client := m.newClient(etcd.Server).Client
	defer client.Close()
	remote := newRemote(etcd.Server)
	m.remote.Store(remote)
	defer func() {
		m.remote.Store(nil)
		remote.Stop()
	}()
	loops.Go(func() { m.tidy(looping, client) })
	loops.Go(func() { m.defragment(looping, client) })
	loops.Go(func() { m.watchQuorum(looping, etcd.Server) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-m.failed:
		return err
	case <-etcd.Server.StopNotify():
		return m.removed()
	case err := <-etcd.Err():
		return fmt.Errorf("serve etcd: %w", err)
	}
}

// fail ends the member with an error.
func (m *Member) fail(why error) {
	select {
	case m.failed <- fatalError{fmt.Errorf("run etcd: %w", why)}:
	default:
	}
}

// removed returns the error for an etcd that has stopped by itself.
func (m *Member) removed() error {
	return fmt.Errorf("this server is no longer a member of the cluster's etcd: its node was deleted, or another server was reset. "+
		"To join it again as a new member, move %s away and start it with --server https://HOST:6443 and --token", m.cfg.Dir)
}

// initialCluster returns the members to begin with. It returns none if the
// member's data already contain them.
func (m *Member) initialCluster(ctx context.Context) (initial string, existing bool, err error) {
	if err := os.MkdirAll(m.cfg.Dir, 0o700); err != nil {
		return "", false, fmt.Errorf("make folder of etcd: %w", err)
	}
	if Exists(m.cfg.Dir) {
		return "", true, nil
	}
	name, err := ensureName(m.cfg.Dir, m.cfg.Node)
	if err != nil {
		return "", false, err
	}
	if m.cfg.Join == nil {
		return name + "=" + m.peerURL(), false, nil
	}
	answer, err := m.cfg.Join(ctx, join.MemberRequest{Name: name, PeerURL: m.peerURL()})
	return answer.InitialCluster, true, err
}

// config returns etcd's configuration.
func (m *Member) config(initial string, existing bool) (*embed.Config, error) {
	name, err := ensureName(m.cfg.Dir, m.cfg.Node)
	if err != nil {
		return nil, err
	}
	peers, err := types.NewURLs([]string{m.peerURL()})
	if err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	clients, err := types.NewURLs([]string{m.clientURL})
	if err != nil {
		return nil, fmt.Errorf("configure etcd: %w", err)
	}
	c := embed.NewConfig()
	c.Name, c.Dir = name, m.cfg.Dir
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL(peers), []url.URL(peers)
	c.AdvertiseClientUrls = []url.URL(clients)
	c.ListenClientUrls = append([]url.URL(clients), url.URL{Scheme: "unix", Path: m.cfg.Socket})
	if m.cfg.Public != "" {
		c.AdvertiseClientUrls = []url.URL{{Scheme: "https", Host: m.cfg.Public}}
	}
	c.InitialCluster = initial
	if existing {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.PeerTLSInfo = peerTLS(m.cfg.Files)
	c.ClientTLSInfo = transport.TLSInfo{
		CertFile: m.cfg.Files.ServerCertFile, KeyFile: m.cfg.Files.ServerKeyFile,
		TrustedCAFile: m.cfg.Files.ServerCAFile, ClientCertAuth: true,
	}
	c.TickMs, c.ElectionMs = uint(heartbeat.Milliseconds()), uint(election.Milliseconds())
	c.SnapshotCount = snapshotCount
	c.QuotaBackendBytes = quota
	c.WatchProgressNotifyInterval = progress
	c.WarningApplyDuration = slowRequest
	c.PreVote = true
	// This check refuses a new member while another member is down, which is just
	// when a new member is needed. members.go decides instead.
	c.StrictReconfigCheck = false
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(m.log, m.fail))
	c.MaxRequestBytes = sizes.Limit
	err = apply(c, m.cfg.Args)
	c.MaxRequestBytes += overhead
	return c, err
}

func peerTLS(files pki.EtcdFiles) transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: files.PeerCertFile, KeyFile: files.PeerKeyFile,
		TrustedCAFile: files.PeerCAFile, ClientCertAuth: true,
		// Only servers have certificates of this authority, and their addresses
		// may have been translated on the way.
		SkipClientSANVerify: true,
	}
}

// start starts etcd.
func (m *Member) start(config *embed.Config) (*embed.Etcd, error) {
	if err := m.settleVersion(); err != nil {
		return nil, err
	}
	etcd, err := embed.StartEtcd(config)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("start etcd: %w: stop the other etcd on this host: kedge's etcd needs %s and %s", err, m.peerURL(), m.clientURL)
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp/util.go errMemberRemoved
	//upstream:relies-on go.etcd.io/etcd/server/v3/etcdserver/api/membership/errors.go ErrIDRemoved
	case err != nil && strings.Contains(err.Error(), "removed from the cluster"):
		return nil, m.removed()
	case err != nil:
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if err := os.Chmod(m.cfg.Socket, 0o600); err != nil {
		stop(etcd)
		return nil, fmt.Errorf("protect the datastore's socket: %w", err)
	}
	return etcd, nil
}

// await waits until the cluster has a leader and this member has a vote.
func (m *Member) await(ctx context.Context, server *etcdserver.EtcdServer) error {
	slow := time.NewTicker(slowStart)
	defer slow.Stop()
	for served := false; !served; {
		select {
		case <-server.ReadyNotify():
			served = true
		case <-slow.C:
			m.log.Warn(m.quorumLost(ctx, server))
		case err := <-m.failed:
			return err
		case <-server.StopNotify():
			return m.removed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	poll := time.NewTicker(retry)
	defer poll.Stop()
	for server.IsLearner() {
		_, err := server.PromoteMember(ctx, uint64(server.MemberID()))
		if err == nil || errors.Is(err, membership.ErrMemberNotLearner) {
			m.log.Info("This server's etcd member has caught up and has a vote now")
			return nil
		}
		if !errors.Is(err, etcderrors.ErrLearnerNotReady) {
			m.log.Debugf("cannot become a voter yet: %v", err)
		}
		select {
		case <-poll.C:
		case <-slow.C:
			m.log.Infof("This server's etcd member is still catching up with the others: %v", err)
		case <-server.StopNotify():
			return m.removed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
