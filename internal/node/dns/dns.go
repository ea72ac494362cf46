// Package dns is the cluster's DNS: CoreDNS on each node, and on servers a controller that tells the
// service proxy where CoreDNS listens. CoreDNS runs in this process, and answers the pods of its node.
// The agent package runs it. The controller is Endpoints, which the server package runs.
//
// CoreDNS listens on the node's own addresses at port 10053. The Service's address would not work,
// because the service proxy rejects packets to it while it has no endpoint. Port 53 may be used by a
// dnsmasq. The Service kube-dns has no selector, one endpoint per node and internalTrafficPolicy
// Local, so a pod always asks the DNS of its own node. A packet filter keeps everybody else out: see
// fence.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coredns/caddy"
	mdns "github.com/miekg/dns"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/objectcache"
)

// Name is the component's name.
const Name = "dns"

// Port is the port on which CoreDNS listens on a node, for UDP and TCP.
const Port = 10053

// resolvConfInterval is how often the host's resolv.conf is read: a laptop or an edge box may change
// networks while it runs.
const resolvConfInterval = 30 * time.Second

// Config is what New needs.
type Config struct {
	// Plugins are from Register.
	Plugins *Plugins
	// Client writes Events as system:kedge:dns.
	Client *rest.Config
	// Informers provide Services, EndpointSlices and namespaces.
	Informers objectcache.Source
	// Objects reads the ConfigMap coredns-custom, and the same as Informers for records of the user's.
	Objects  *rest.Config
	NodeName string
	// NodeIPs are the addresses to listen on: the node's InternalIPs, one per family.
	NodeIPs []netip.Addr
	// PodCIDRs are the cluster's ranges of pod addresses.
	PodCIDRs      []netip.Prefix
	ClusterDomain string
	// ClusterDNS are the addresses of the Service. They cannot be upstreams.
	ClusterDNS []netip.Addr
	// ResolvConf is the file with the nameservers for names outside the cluster. It is read in the
	// host's network namespace, so loopback addresses such as 127.0.0.53 work.
	ResolvConf string
	// Folder has the only files that the ConfigMap coredns-custom may name.
	Folder string
}

// DNS is the component that answers a node's pods.
type DNS struct {
	cfg    Config
	log    *logrus.Entry
	source *source
	// events and objects are made of Config.Client and Config.Objects.
	events, objects kubernetes.Interface

	// The following fields belong to Run's goroutine.
	corefile corefile
	// custom are the user's parts in use, running is the Corefile in use.
	custom   map[string]string
	running  string
	instance *caddy.Instance
}

// New returns the DNS of a node.
func New(cfg Config) *DNS {
	return &DNS{cfg: cfg, log: logrus.WithField("component", Name), source: &source{client: cfg.Objects, nameservers: newNameservers()}}
}

// Name implements component.Component.
func (*DNS) Name() string { return Name }

// Run implements component.Component. It is ready when it knows the cluster's
// Services and answers for one on each of the node's addresses.
func (d *DNS) Run(ctx context.Context, ready func()) (err error) {
	if d.events, err = kubernetes.NewForConfig(d.cfg.Client); err != nil {
		return fmt.Errorf("make client of events: %w", err)
	}
	if d.objects, err = kubernetes.NewForConfig(d.cfg.Objects); err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	for _, address := range d.cfg.NodeIPs {
		if err := probe(address); err != nil {
			return err
		}
	}

	d.corefile = corefile{
		source:    d.cfg.NodeName,
		addresses: d.cfg.NodeIPs,
		port:      Port,
		domain:    d.cfg.ClusterDomain,
		folder:    d.cfg.Folder,
	}
	d.cfg.Plugins.sources.Store(d.corefile.source, d.source)
	defer d.cfg.Plugins.sources.Delete(d.corefile.source)

	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()

	links, err := d.raiseFence(ctx)
	if err != nil {
		return err
	}
	if links != nil {
		defer links.lower()
	}

	shared, end, err := newRecords(ctx, d.cfg.Informers)
	if err != nil {
		return err
	}
	defer end()
	d.source.shared = shared
	if ctx.Err() != nil {
		return nil
	}
	d.readResolvConf()
	text, err := d.corefile.render(nil)
	if err != nil {
		return fmt.Errorf("write Corefile: %w", err)
	}
	d.instance, err = caddy.Start(input(text))
	// An instance that failed to start may still have servers, so it is stopped too.
	defer func() { err = errors.Join(err, d.stop()) }()
	if err != nil {
		return fmt.Errorf("start CoreDNS: %w", err)
	}
	d.running = text

	parts := make(chan *corev1.ConfigMap)
	tasks.Go(func() { d.source.nameservers.follow(ctx, nameserverInterval) })
	tasks.Go(func() { watchCustom(ctx, d.objects, parts) })
	tasks.Go(func() {
		if d.waitAnswers(ctx) {
			ready()
		}
	})
	return d.serve(ctx, parts, links)
}

// serve adapts CoreDNS to changes of its settings until ctx ends.
func (d *DNS) serve(ctx context.Context, parts <-chan *corev1.ConfigMap, links *linkWatch) error {
	tick := time.NewTicker(resolvConfInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case configMap := <-parts:
			d.customize(ctx, configMap)
		case <-links.changed():
			if err := links.fence.update(ctx); err != nil && ctx.Err() == nil {
				d.log.Warnf("cannot adapt the packet filter to the host's interfaces: %v", err)
			}
		case <-tick.C:
			d.readResolvConf()
			if err := d.reload(d.custom); err != nil {
				d.log.Warnf("cannot use the nameservers of %s: %v", d.cfg.ResolvConf, err)
			}
		}
	}
}

// readResolvConf takes over the nameservers of the host, for the next Corefile.
func (d *DNS) readResolvConf() {
	d.corefile.upstreams = upstreams(d.cfg.ResolvConf, d.cfg.ClusterDNS)
	d.source.nameservers.set(d.corefile.upstreams)
}

// customize applies the user's parts. nil means that there are none. If a part cannot be used, all are
// refused with an Event on their ConfigMap, and CoreDNS keeps its configuration.
func (d *DNS) customize(ctx context.Context, configMap *corev1.ConfigMap) {
	var custom map[string]string
	if configMap != nil {
		custom = configMap.Data
	}
	err := d.reload(custom)
	if err == nil {
		d.custom = custom
		return
	}
	d.log.Warnf("cannot use ConfigMap %s/%s, the former configuration stays in use: %v", namespace, customName, err)
	if err := refuse(ctx, d.events, d.cfg.NodeName, configMap, err); err != nil && ctx.Err() == nil {
		d.log.Warnf("cannot write an Event about that ConfigMap: %v", err)
	}
}

// reload makes CoreDNS use the user's parts. If it fails, CoreDNS keeps its configuration.
func (d *DNS) reload(custom map[string]string) error {
	text, err := d.corefile.render(custom)
	if err != nil || text == d.running {
		return err
	}
	// Restart passes the open sockets to the new instance, so no query is lost. On an error it
	// returns the old instance. After a panic it returns nil, because it recovers.
	next, err := d.instance.Restart(input(text))
	if err != nil {
		return d.corefile.told(text, err)
	}
	if next == nil {
		return errors.New("CoreDNS panicked on this configuration")
	}
	d.instance, d.running = next, text
	return nil
}

// stop stops CoreDNS and waits until it has ended.
func (d *DNS) stop() error {
	if d.running != "" {
		d.waitServes()
	}
	err := errors.Join(d.instance.ShutdownCallbacks()...)
	err = errors.Join(err, d.instance.Stop())
	d.instance.Wait()
	return err
}

// waitServes waits until each address answers, at most a second. A server that is stopped before it
// serves would never end (Server.Stop in CoreDNS's core/dnsserver/server.go).
//
//upstream:relies-on github.com/coredns/coredns/core/dnsserver/server.go Server.Stop
func (d *DNS) waitServes() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	question := new(mdns.Msg).SetQuestion(".", mdns.TypeNS)
	for _, address := range d.cfg.NodeIPs {
		for _, network := range []string{"udp", "tcp"} {
			client := mdns.Client{Net: network, Timeout: 100 * time.Millisecond}
			_ = wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(ctx context.Context) (bool, error) {
				_, _, err := client.ExchangeContext(ctx, question, netip.AddrPortFrom(address, Port).String())
				return err == nil, nil
			})
		}
	}
}

func input(text string) caddy.Input {
	return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}
}

// probe returns an error if the address cannot be listened on. CoreDNS would silently share the port
// with another CoreDNS (SO_REUSEPORT).
//
//upstream:relies-on github.com/coredns/coredns/core/dnsserver/server.go Server.Listen Server.ListenPacket
func probe(address netip.Addr) error {
	target := netip.AddrPortFrom(address, Port)
	listener, err := net.Listen("tcp", target.String())
	if err == nil {
		err = listener.Close()
	}
	if err == nil {
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp", target.String()); err == nil {
			err = packets.Close()
		}
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d of %s, which the cluster's DNS needs, is taken by another program: stop that program", Port, address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("this host has no address %s: set node-ip to an address of this host", address)
	case err != nil:
		return fmt.Errorf("listen on %s: %w", target, err)
	}
	return nil
}

// waitAnswers waits until each address answers for the Service kubernetes, which every cluster has. It
// returns false if ctx ends first.
func (d *DNS) waitAnswers(ctx context.Context) bool {
	question := new(mdns.Msg)
	question.SetQuestion(mdns.Fqdn("kubernetes.default.svc."+d.cfg.ClusterDomain), mdns.TypeA)
	client := mdns.Client{Timeout: time.Second}
	for _, address := range d.cfg.NodeIPs {
		err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			answer, _, err := client.ExchangeContext(ctx, question, net.JoinHostPort(address.String(), strconv.Itoa(Port)))
			return err == nil && answer.Rcode == mdns.RcodeSuccess, nil
		})
		if err != nil {
			return false
		}
	}
	return true
}

// raiseFence installs the packet filter and watches the host's addresses for it. Without nftables it
// returns nil and makes CoreDNS ignore strangers: the port is then visible from outside and does not
// answer.
func (d *DNS) raiseFence(ctx context.Context) (*linkWatch, error) {
	f, err := newFence(d.cfg.PodCIDRs)
	if err == nil {
		// The watch begins before the first look, so that no change is missed.
		watch := &linkWatch{fence: f, updates: make(chan netlink.AddrUpdate, 16), done: make(chan struct{})}
		if err := netlink.AddrSubscribe(watch.updates, watch.done); err != nil {
			return nil, fmt.Errorf("watch addresses: %w", err)
		}
		if err = f.update(ctx); err == nil {
			return watch, nil
		}
		watch.close()
	}
	d.log.Warnf("cannot set up the packet filter, so the cluster's DNS recognises strangers only by their addresses, which can be forged: %v", err)
	d.corefile.admitted = admitted(d.cfg)
	return nil, nil
}

// admitted returns the addresses of the node and of pods, which are admitted without nftables.
func admitted(cfg Config) []netip.Prefix {
	prefixes := append([]netip.Prefix{}, cfg.PodCIDRs...)
	for _, address := range cfg.NodeIPs {
		prefixes = append(prefixes, netip.PrefixFrom(address, address.BitLen()))
	}
	return prefixes
}

// linkWatch is a fence and the channel of address changes that it needs. A nil linkWatch has no
// changes.
type linkWatch struct {
	fence   *fence
	updates chan netlink.AddrUpdate
	done    chan struct{}
}

func (w *linkWatch) changed() <-chan netlink.AddrUpdate {
	if w == nil {
		return nil
	}
	return w.updates
}

// close ends the watch and waits for its goroutine, which closes updates.
func (w *linkWatch) close() {
	close(w.done)
	for range w.updates {
	}
}

// lower ends the watch and removes the fence. Nothing listens behind it any more, and it must not block
// the next program on that port.
func (w *linkWatch) lower() {
	w.close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := w.fence.remove(ctx); err != nil {
		logrus.WithField("component", Name).Warn(err)
	}
}
