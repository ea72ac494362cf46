// Package dns is the cluster's DNS. Two components make it: on every node,
// CoreDNS in process answers that node's pods, and on the servers a small
// controller tells the service proxy where (see Endpoints). The agent package
// runs the first, the server package the second.
//
// CoreDNS listens on the node's own addresses, port 10053, not on the Service's
// address, which the service proxy rejects as long as it has no endpoint, nor on
// port 53, where a dnsmasq may be. The Service kube-dns has no selector, one
// endpoint per node and internalTrafficPolicy Local, so that a pod always asks
// the DNS of its own node. A packet filter keeps everybody else out; see fence.
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
)

// Name is the component's name.
const Name = "dns"

// Port is where CoreDNS listens on a node, for UDP and TCP.
const Port = 10053

// resolvConfInterval is how often the host's resolv.conf is looked at: a laptop
// or an edge box changes networks while it runs.
const resolvConfInterval = 30 * time.Second

// Config is what the DNS of a node needs.
type Config struct {
	// Plugins are from Register.
	Plugins *Plugins
	// Client reads the API as system:kedge:dns.
	Client   *rest.Config
	NodeName string
	// NodeIPs are listened on: the node's InternalIPs, one per family.
	NodeIPs []netip.Addr
	// PodCIDRs are the cluster's ranges of pod addresses.
	PodCIDRs      []netip.Prefix
	ClusterDomain string
	// ClusterDNS are the addresses of the Service, which cannot be upstreams.
	ClusterDNS []netip.Addr
	// ResolvConf is the file with the nameservers for all other names. It is
	// read in the host's network, so loopback ones like 127.0.0.53 are fine.
	ResolvConf string
	// Folder has the only files that the ConfigMap coredns-custom may name.
	Folder string
}

// DNS is the component that answers a node's pods.
type DNS struct {
	cfg    Config
	log    *logrus.Entry
	source *source
	api    kubernetes.Interface

	// What follows belongs to Run's goroutine.
	corefile corefile
	// custom are the user's parts in use, running the Corefile in use.
	custom   map[string]string
	running  string
	instance *caddy.Instance
}

// New makes the DNS of a node; it implements component.Component.
func New(cfg Config) *DNS {
	return &DNS{cfg: cfg, log: logrus.WithField("component", Name), source: &source{client: cfg.Client}}
}

// Name implements component.Component.
func (*DNS) Name() string { return Name }

// Run implements component.Component. It is ready when it knows the cluster's
// Services and answers for one on each of the node's addresses.
func (d *DNS) Run(ctx context.Context, ready func()) (err error) {
	if d.api, err = kubernetes.NewForConfig(d.cfg.Client); err != nil {
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

	defer func() { err = errors.Join(err, d.source.stop()) }()
	if ctx.Err() != nil {
		return nil
	}
	d.corefile.upstreams = upstreams(d.cfg.ResolvConf, d.cfg.ClusterDNS)
	text, err := d.corefile.render(nil)
	if err != nil {
		return fmt.Errorf("write Corefile: %w", err)
	}
	d.instance, err = caddy.Start(input(text))
	// Even one that failed may have servers, which it returns.
	defer func() { err = errors.Join(err, d.stop()) }()
	if err != nil {
		return fmt.Errorf("start CoreDNS: %w", err)
	}
	d.running = text

	parts := make(chan *corev1.ConfigMap)
	tasks.Go(func() { watchCustom(ctx, d.api, parts) })
	tasks.Go(func() {
		if d.waitAnswers(ctx) {
			ready()
		}
	})
	return d.serve(ctx, parts, links)
}

// serve keeps CoreDNS in step with what it depends on until ctx ends.
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
				d.log.Warnf("cannot adapt the packet filter: %v", err)
			}
		case <-tick.C:
			d.corefile.upstreams = upstreams(d.cfg.ResolvConf, d.cfg.ClusterDNS)
			if err := d.reload(d.custom); err != nil {
				d.log.Warnf("cannot use the nameservers of %s: %v", d.cfg.ResolvConf, err)
			}
		}
	}
}

// customize takes over the user's parts; nil means there are none. Parts that
// cannot be used are refused as a whole, with an event on their ConfigMap.
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
	d.log.Warnf("refused ConfigMap %s/%s: %v", namespace, customName, err)
	if err := refuse(ctx, d.api, d.cfg.NodeName, configMap, err); err != nil && ctx.Err() == nil {
		d.log.Warnf("cannot write an event about it: %v", err)
	}
}

// reload makes CoreDNS run with the given parts of the user's. On an error it
// goes on as before.
func (d *DNS) reload(custom map[string]string) error {
	text, err := d.corefile.render(custom)
	if err != nil || text == d.running {
		return err
	}
	// Restart hands the open sockets on, so no query is lost. It returns the
	// old instance on an error and, because it recovers, nil after a panic.
	next, err := d.instance.Restart(input(text))
	if err != nil {
		return d.corefile.told(text, err)
	}
	if next == nil {
		return errors.New("CoreDNS panicked on it")
	}
	d.instance, d.running = next, text
	return nil
}

// stop ends CoreDNS and waits for it.
func (d *DNS) stop() error {
	if d.running != "" {
		d.waitServes()
	}
	err := errors.Join(d.instance.ShutdownCallbacks()...)
	err = errors.Join(err, d.instance.Stop())
	d.instance.Wait()
	return err
}

// waitServes waits until each address answers anything, a second at most. A server
// that is stopped before it serves would go on for ever (Server.Stop of CoreDNS's
// core/dnsserver/server.go).
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

// probe tells whether the address can be listened on. CoreDNS itself would
// share the port with another of its kind and say nothing (SO_REUSEPORT).
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
		return fmt.Errorf("port %d of %s is taken by another program: stop that, the cluster's DNS needs it", Port, address)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this host: set node-ip to one that is", address)
	case err != nil:
		return fmt.Errorf("listen on %s: %w", target, err)
	}
	return nil
}

// waitAnswers waits until each address answers for the one Service that every
// cluster has. It returns false if ctx ends first.
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

// raiseFence puts up the packet filter and watches the host's addresses for it.
// Where there is no nftables, CoreDNS itself ignores strangers and nil is
// returned: then its port is seen from outside but does not answer.
func (d *DNS) raiseFence(ctx context.Context) (*linkWatch, error) {
	f, err := newFence(d.cfg.PodCIDRs)
	if err == nil {
		// Watched before looked at, so that nothing is missed between.
		watch := &linkWatch{fence: f, updates: make(chan netlink.AddrUpdate, 16), done: make(chan struct{})}
		if err := netlink.AddrSubscribe(watch.updates, watch.done); err != nil {
			return nil, fmt.Errorf("watch addresses: %w", err)
		}
		if err = f.update(ctx); err == nil {
			return watch, nil
		}
		watch.close()
	}
	d.log.Warnf("no packet filter, so the cluster's DNS ignores strangers by their address only: %v", err)
	d.corefile.admitted = admitted(d.cfg)
	return nil, nil
}

// admitted returns the addresses of the node and its pods, for lack of nftables.
func admitted(cfg Config) []netip.Prefix {
	prefixes := append([]netip.Prefix{}, cfg.PodCIDRs...)
	for _, address := range cfg.NodeIPs {
		prefixes = append(prefixes, netip.PrefixFrom(address, address.BitLen()))
	}
	return prefixes
}

// linkWatch is a fence and the news it needs. A nil one has none.
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

// lower ends the watch and takes the fence down: nothing listens behind it any
// more, and the next program on that port is not kedge's business.
func (w *linkWatch) lower() {
	w.close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := w.fence.remove(ctx); err != nil {
		logrus.WithField("component", Name).Warn(err)
	}
}
