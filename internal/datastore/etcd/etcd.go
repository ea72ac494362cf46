// Package etcd is the datastore of several servers: a member of an etcd cluster
// in this process. The server package runs it, and asks it to admit the members
// of servers that join; it also makes a cluster of one again with it (Reset), and a
// member of what another datastore has (Migrate).
//
// A member comes as a learner, which has no vote, and becomes a voter by itself
// when it has caught up; only then it is ready. Whichever member leads removes
// those whose nodes were deleted, and learners that never came (tidy.go). The
// decisions are in members.go, without any etcd in them.
//
// The API server calls the member without a connection. Other members reach it at
// port 2380 of the node's address, clients on this host at 127.0.0.1:2379; both want
// certificates of the cluster's own authorities for it (pki.EtcdFiles). Servers
// without a member call it by the supervisor's port (remote.go). etcdctl needs no
// certificate on the socket, as with the other datastores.
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

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/measure"
)

// name is that of the component.
const name = "datastore"

const (
	// PeerPort is where members reach each other.
	PeerPort = "2380"
	// clientURL is where clients on this host reach the member that do not know
	// its socket, and nobody from outside.
	clientURL = "https://127.0.0.1:2379"
)

const (
	// A leader is heard of each heartbeat. Without one, another is chosen after
	// election, or at most twice that: that long the API stands still when the
	// leader dies. A disk may be busy for as long without that happening.
	heartbeat = 400 * time.Millisecond
	election  = 2 * time.Second
	// snapshotCount is after how many changes the log is cut: the rest is in
	// memory too.
	snapshotCount = 10_000
	// quota is how large the database may be, the most that etcd is tested with:
	// at its end etcd refuses all writes until somebody mends it by hand.
	quota = 8 << 30
	// progress is how often watches that see nothing are told how far they are.
	// It is less than what compaction leaves, so that they can be resumed.
	progress = time.Minute
	// slowRequest is from when on a request is warned of.
	slowRequest = time.Second
	// retry is how often is tried what others have to be ready for.
	retry = time.Second
	// slowStart is after how long what the start waits for is logged, each time.
	slowStart = 20 * time.Second
)

// Config is what a Member has to know.
type Config struct {
	// Dir is the folder of the member's data.
	Dir string
	// Node is the name of the node, of which the member's is made.
	Node string
	// Address is the node's.
	Address string
	Files   pki.EtcdFiles
	// Public is HOST:PORT of the port of this server at which servers without etcd
	// reach the member (ServeHTTP), if they do. The other members tell it too.
	Public string
	// Socket is the path of the unix socket for etcdctl. Its folder is for root
	// only.
	Socket string
	// Join asks the cluster to take this member in, for as long as it takes. Nil
	// begins a cluster. It is not called if there is a member in Dir.
	Join func(context.Context, join.MemberRequest) (join.MemberResponse, error)
}

// Member is a datastore.Datastore.
type Member struct {
	cfg Config
	log *logrus.Entry
	// server is nil before the member runs.
	server atomic.Pointer[etcdserver.EtcdServer]
	// remote answers calls over the network; nil before the member is ready.
	remote atomic.Pointer[grpc.Server]
	peers  *prober
	meter  *measure.Meter
	// syncs is how long etcd's syncs of the disk take.
	syncs prometheus.Metric
	// clientURL is for clients on this host. Tests run several members on one.
	clientURL string
	outage    outage
	// failed has why etcd cannot go on, once.
	failed chan error
	// poked wakes the one that tidies.
	poked chan struct{}
	// admitting is held while a member is taken in: raft drops the second of two
	// changes at once, without a word, and who waits for it does so in vain.
	admitting sync.Mutex

	mu sync.Mutex
	// deleted are members that have to go, because their nodes were deleted, and
	// since when.
	deleted map[uint64]time.Time
}

// New returns the member whose data are in cfg.Dir.
func New(cfg Config) *Member {
	log := logrus.WithField("component", name)
	return &Member{
		cfg: cfg,
		log: log,
		meter: measure.NewMeter(log, fmt.Sprintf("If commits take long, the disk under %s does: look at `iostat -x 1` and `dmesg`. "+
			"If not, look at the other servers and the network to them (`kedge status`)", cfg.Dir)),
		syncs:     registeredSyncs(),
		peers:     newProber(cfg.Files),
		clientURL: clientURL,
		failed:    make(chan error, 1),
		poked:     make(chan struct{}, 1),
		deleted:   map[uint64]time.Time{},
	}
}

// Exists tells whether there is a member in a folder.
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
// the cluster a leader, and fails if this server is no longer a member.
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
	defer m.peers.close()
	m.server.Store(etcd.Server)

	err = m.await(ctx, etcd.Server)
	if err == nil {
		ready()
		err = m.serve(ctx, etcd)
	}
	if errors.As(err, &fatalError{}) {
		return err // and leave etcd, parts of which may stand still
	}
	stop(etcd)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// stop stops etcd. Before it was ready its Close waits for listeners that wait for
// it to be ready or to stop (server/v3/embed/serve.go).
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

// fatalError is why etcd cannot go on.
type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

// serve does what a member does besides, until ctx ends or the member.
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

// fail ends the member.
func (m *Member) fail(why error) {
	select {
	case m.failed <- fatalError{fmt.Errorf("run etcd: %w", why)}:
	default:
	}
}

// removed is why etcd has stopped by itself.
func (m *Member) removed() error {
	return fmt.Errorf("this server is no longer a member of the cluster's etcd: its node was deleted, or another server was reset. "+
		"To join it again as a new member, move %s away and start it with --server https://HOST:6443 and --token", m.cfg.Dir)
}

// initialCluster returns the members to begin with. There are none where the
// member's data know them.
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
	// It refuses a new member while one is down, which is when one is wanted:
	// members.go decides.
	c.StrictReconfigCheck = false
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(m.log, m.fail))
	return c, nil
}

func peerTLS(files pki.EtcdFiles) transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: files.PeerCertFile, KeyFile: files.PeerKeyFile,
		TrustedCAFile: files.PeerCAFile, ClientCertAuth: true,
		// Only servers have certificates of this authority, and their address may
		// have been translated on the way.
		SkipClientSANVerify: true,
	}
}

// start starts etcd.
func (m *Member) start(config *embed.Config) (*embed.Etcd, error) {
	etcd, err := embed.StartEtcd(config)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("start etcd: %w: stop the other etcd on this host; kedge's needs %s and %s", err, m.peerURL(), m.clientURL)
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

// await waits until the cluster has a leader and this member a vote.
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
			m.log.Info("This server's member has caught up and has a vote now")
			return nil
		}
		if !errors.Is(err, etcderrors.ErrLearnerNotReady) {
			m.log.Debugf("cannot become a voter yet: %v", err)
		}
		select {
		case <-poll.C:
		case <-slow.C:
			m.log.Infof("Still catching up with the other servers: %v", err)
		case <-server.StopNotify():
			return m.removed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
