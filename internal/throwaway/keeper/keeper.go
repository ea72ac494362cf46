// Package keeper keeps one throw-away cluster: it makes the cluster's network and nodes, runs kedge on
// them, and removes everything at the end. It does so in a process of its own, so that the cluster also
// goes if `kedge run` is killed. Launch starts that process, and Main is its main function; only cli calls
// them.
package keeper

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/egress"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
	"github.com/kedge-dev/kedge/internal/throwaway/registry"
)

// helpersFolder has the unpacked helpers of kedge, for all throw-away clusters. It is a cache: anybody may
// remove it while no cluster runs.
const helpersFolder = "/var/cache/kedge"

// Paths of a server's files on its node.
const (
	agentTokenFile = "/etc/kedge/throwaway-agent-secret"
	joinTokenFile  = "/etc/kedge/throwaway-token"
)

// An interface of a killed keeper is waited for so often, with this pause.
const (
	attachTries = 200
	attachPause = 50 * time.Millisecond
)

// keeper keeps a cluster that this process holds.
type keeper struct {
	*clusters.Held
	store  clusters.Store
	report func(Report)
	// isNew says that the cluster goes if it does not get ready.
	isNew bool
	// archives are images that all nodes get.
	archives []string
	// rootless says that this process is in a user namespace, and cannot change the machine's network.
	rootless bool
	// helpers is the folder with the unpacked helpers.
	helpers string

	// url is the URL of the API, which the machine reaches.
	url       string
	layout    layout
	network   *hosts.Network
	egress    *egress.Egress
	published *publisher
	images    *imageServer
	nodes     []*hosts.Host
	daemons   []*daemon
	status    clusters.Status
}

// errEarly says why a cluster went although nothing failed.
var errEarly = errors.New("the cluster was ended before it was ready: somebody stopped or deleted it, or its keeper got a signal")

// keep makes the cluster, and removes it when ctx ends. It returns the fault that ended the cluster before
// that.
func (k *keeper) keep(ctx context.Context) error {
	return errors.Join(k.untilSeen(ctx, k.live(ctx)), k.remove())
}

// untilSeen reports the fault of a cluster in memory at once, and waits until ctx ends: the logs of the cluster,
// which show what has happened, go with it. It returns the fault.
func (k *keeper) untilSeen(ctx context.Context, fault error) error {
	if fault != nil && k.Temporary {
		k.report(Report{Error: fault.Error()})
		<-ctx.Done()
	}
	return fault
}

// live makes the cluster, and returns when ctx ends or when the cluster has failed.
func (k *keeper) live(ctx context.Context) error {
	failed := make(chan error, k.Nodes+1)
	began := time.Now()
	k.report(Report{Name: k.Name, Logs: k.store.Logs(k.Cluster)})
	if err := k.make(ctx); err != nil {
		return err
	}
	k.step("machine", began)
	err := k.startAll(ctx, failed)
	if ctx.Err() != nil {
		return errEarly
	}
	if err != nil {
		return err
	}
	if err := k.writeKubeconfig(); err != nil {
		return err
	}
	if err := k.loadImages(ctx); err != nil {
		return err
	}
	k.status.State, k.status.API = clusters.Ready, k.url
	if err := k.Write(k.status); err != nil {
		return err
	}
	k.report(Report{Ready: true, Name: k.Name, API: k.url, Kubeconfig: k.store.Kubeconfig(k.Name), Logs: k.store.Logs(k.Cluster)})
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// step reports a step that has ended now.
func (k *keeper) step(name string, began time.Time) {
	k.report(Report{Step: name, Seconds: time.Since(began).Seconds()})
}

// api returns where the first server answers.
func (k *keeper) api() netip.AddrPort { return netip.AddrPortFrom(k.Addresses().Address(1), 6443) }

// make makes the network, the ways in and out, and the nodes.
func (k *keeper) make(ctx context.Context) (err error) {
	helpers, err := assets.Unpack(k.helpers)
	if err != nil {
		return err
	}
	// The library for nftables looks for nft in PATH.
	if err := os.Setenv("PATH", helpers.Bin+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the executable of kedge: %w", err)
	}
	k.layout = layout{helpers: k.helpers, executable: executable, rootless: k.rootless}
	if k.network, err = hosts.NewNetwork(k.Addresses()); err != nil {
		return err
	}
	if err := k.connect(ctx); err != nil {
		return err
	}
	// In a container, cgroups of version 2 cannot be used before this.
	if err := host.DelegateCgroups(); err != nil {
		return err
	}
	k.nodes = make([]*hosts.Host, k.Nodes)
	var group errgroup.Group
	for number := 1; number <= k.Nodes; number++ {
		group.Go(func() (err error) {
			if k.nodes[number-1], err = k.makeNode(number); err != nil {
				return fmt.Errorf("make node %s: %w", k.NodeName(number), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	k.status = clusters.Status{State: clusters.Starting, Keeper: os.Getpid()}
	for _, node := range k.nodes {
		k.status.FirstProcesses = append(k.status.FirstProcesses, node.FirstProcess())
		var data unix.Stat_t
		if err := unix.Stat(node.Path("/var/lib"), &data); err == nil && k.Temporary {
			k.status.Devices = append(k.status.Devices, data.Dev)
		}
	}
	return k.Write(k.status)
}

// connect opens the ways in and out of the network.
func (k *keeper) connect(ctx context.Context) error {
	subnet := k.Addresses()
	out := egress.Config{
		NS: k.network.NS, Bridge: subnet.Address(hosts.Gateway), Network: netip.PrefixFrom(subnet.Address(0), 24),
		Refused: clusters.Range(), ResolvConf: "/etc/resolv.conf", Own: egress.OwnAddresses,
	}
	var err error
	if k.published, err = publish(k.network.NS, k.Published, subnet.Address(1)); err != nil {
		return err
	}
	if k.rootless {
		// No interface of the machine leads to the network. So the API has a port of loopback, and the machine cannot
		// see an address of the cluster.
		out.Own = func() (map[netip.Addr]bool, error) { return nil, nil }
		port, err := k.published.open("the API", netip.MustParseAddrPort("127.0.0.1:0"), k.api())
		if err != nil {
			return err
		}
		k.url = "https://" + port.String()
	} else if err := k.attach(ctx); err != nil {
		return err
	}
	if k.egress, err = egress.New(ctx, out); err != nil {
		return err
	}
	if k.Registry != 0 {
		k.images, err = k.serveImages()
	}
	return err
}

// attach gives the machine an interface of the network.
func (k *keeper) attach(ctx context.Context) error {
	machine, err := netns.Get()
	if err != nil {
		return fmt.Errorf("find the machine's network: %w", err)
	}
	defer machine.Close()
	err = attach(ctx, k.Interface(), func() error { return k.network.Attach(clusters.Uplink, machine, k.Interface(), false) })
	if err != nil {
		return err
	}
	k.url = "https://" + k.api().String()
	return k.network.SetGateway(clusters.Uplink)
}

// attach calls try, which makes an interface of the machine. The kernel removes the interface of a killed keeper some
// time after its processes, so the name may be taken at first.
func attach(ctx context.Context, name string, try func() error) error {
	for range attachTries {
		err := try()
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		if loop.Sleep(ctx, attachPause) != nil {
			return errEarly
		}
	}
	return fmt.Errorf("this host has an interface %s, which belongs to no cluster that runs. Look at it with `ip link show %s`, and remove it with `sudo ip link delete %s`", name, name, name)
}

// makeNode makes a node without a kedge.
func (k *keeper) makeNode(number int) (*hosts.Host, error) {
	if err := hosts.MakeCgroup(nodeCgroup(k.Cluster, number)); err != nil {
		return nil, err
	}
	at := k.layout
	at.root = filepath.Join(k.store.RunFolder(k.Name), "nodes", k.NodeName(number))
	if !k.Temporary {
		at.data = filepath.Join(k.store.DataFolder(k.Name), "nodes", k.NodeName(number))
	}
	setup := at.node(k.Cluster, number)
	if k.Registry != 0 {
		mirrors, err := registry.Mirror(nil, k.Registry, k.nodesAddress())
		if err != nil {
			return nil, err
		}
		setup.Files[config.Default().Node.PrivateRegistry] = string(mirrors)
	}
	node, err := hosts.Start(setup)
	if err != nil {
		return nil, err
	}
	if err := k.network.Attach(number, node.NS(), "eth0", true); err != nil {
		node.Halt()
		return nil, err
	}
	return node, nil
}

// writeKubeconfig writes the administrator's kubeconfig, with the address that the machine reaches.
func (k *keeper) writeKubeconfig() error {
	cfg, err := clientcmd.LoadFromFile(k.nodes[0].Path(config.Default().Server.WriteKubeconfig))
	if err != nil {
		return fmt.Errorf("read kubeconfig of the server: %w", err)
	}
	for _, cluster := range cfg.Clusters {
		cluster.Server = k.url
	}
	text, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("make kubeconfig: %w", err)
	}
	return datadir.WriteFile(k.store.Kubeconfig(k.Name), text, 0o600)
}

// remove ends everything, and removes it. A cluster that stays keeps its data, and its kedges stop in
// order, agents first.
func (k *keeper) remove() error {
	if k.published != nil {
		k.published.close()
	}
	if k.images != nil {
		k.images.close()
	}
	if !k.Temporary {
		servers := min(k.Servers, len(k.daemons)) // those that were started
		for _, daemons := range [][]*daemon{k.daemons[servers:], k.daemons[:servers]} {
			var stopping sync.WaitGroup
			for _, d := range daemons {
				stopping.Go(d.stop)
			}
			stopping.Wait()
		}
	}
	var halting sync.WaitGroup
	for _, node := range k.nodes {
		if node != nil {
			halting.Go(node.Halt)
		}
	}
	halting.Wait()
	if k.egress != nil {
		k.egress.Close()
	}
	if k.network != nil {
		if !k.rootless {
			// The kernel removes a namespace at some later time: nobody should see the interface until then.
			_ = k.network.Detach(clusters.Uplink)
		}
		k.network.Close()
	}
	if k.Temporary || k.isNew && k.status.State != clusters.Ready {
		return k.Delete()
	}
	return k.Release()
}
