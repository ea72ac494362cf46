package dns

import (
	"context"
	"fmt"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	// These are the plugins of CoreDNS that a Corefile may name. Left out are those that open ports or
	// end the process (prometheus, health, ready, pprof, loop, debug), those that reload by themselves,
	// and those for certain clouds and stores. The whole bundle, core/plugin, does not build with
	// kedge's etcd modules.
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/any"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/chaos"
	_ "github.com/coredns/coredns/plugin/dns64"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/header"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/local"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/metadata"
	_ "github.com/coredns/coredns/plugin/minimal"
	_ "github.com/coredns/coredns/plugin/nsid"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/whoami"
)

// The directives that replace CoreDNS's kubernetes directive, whose setup (plugin/kubernetes/setup.go)
// redirects klog for the whole process and connects to the API over TCP. Their first argument is the
// name of a source. The arguments of kubernetes follow.
const (
	// sharedDirective answers from records that outlive a reload.
	//upstream:relies-on github.com/coredns/coredns/plugin/kubernetes/setup.go setup
	sharedDirective = "kedge-cluster"
	// ownDirective is for a kubernetes directive of the user's. Its options may differ, so it has
	// records of its own.
	ownDirective = "kedge-kubernetes"
	// metricsDirective is CoreDNS's prometheus directive without the port that it opens.
	metricsDirective = "kedge-metrics"
	// nameserversDirective takes over the errors of queries to the host's nameservers. Its argument is
	// the name of a source.
	nameserversDirective = "kedge-nameservers"
)

// directives are the directives that a Corefile may contain, in the order in which they handle a query.
// The order is that of dnsserver.Directives in core/dnsserver/zdirectives.go.
//
//upstream:relies-on github.com/coredns/coredns/core/dnsserver/zdirectives.go Directives
var directives = []string{
	"metadata", "nsid", "bufsize", "bind", metricsDirective, "errors", "log", "local",
	"dns64", "any", "chaos", "loadbalance", "rewrite", "acl", "cache", "header",
	"minimal", "template", "hosts", sharedDirective, ownDirective, "file",
	nameserversDirective, "forward", "whoami",
}

// Plugins are kedge's directives in CoreDNS's registries.
type Plugins struct {
	// sources has the running DNS components by their names in Corefiles. CoreDNS gives a
	// setup function only the Corefile, so the function finds its component here.
	sources sync.Map // string to *source
}

// Register registers kedge's directives with CoreDNS, for all DNS components of this process. It
// must be called only once: CoreDNS's registries are global to the process and panic at a second
// registration.
func Register() (*Plugins, error) {
	p := &Plugins{}
	// Otherwise CoreDNS prints messages to standard output when it starts.
	caddy.Quiet = true
	dnsserver.Quiet = true
	plugin.Register(sharedDirective, func(c *caddy.Controller) error {
		return p.setUp(c, (*source).share)
	})
	plugin.Register(ownDirective, func(c *caddy.Controller) error {
		return p.setUp(c, (*source).own)
	})
	plugin.Register(metricsDirective, measure)
	plugin.Register(nameserversDirective, p.watchNameservers)
	if err := dnsserver.SetDirectives(directives); err != nil {
		return nil, fmt.Errorf("register CoreDNS's directives: %w", err)
	}
	return p, nil
}

// source provides the records of one DNS component.
type source struct {
	client      *rest.Config
	nameservers *nameservers
	// shared are the records from which all instances of CoreDNS answer, one instance after the
	// other: a reload must not lose records while the API is away.
	shared records
}

// share gives the handler the shared records.
func (s *source) share(_ *caddy.Controller, _ caddyfile.Dispenser, handler *kubernetes.Kubernetes) error {
	handler.APIConn = s.shared
	return nil
}

// own gives the handler records that live as long as its instance.
func (s *source) own(c *caddy.Controller, stanza caddyfile.Dispenser, handler *kubernetes.Kubernetes) error {
	reader, err := withoutPods(c, stanza)
	if err != nil {
		return err
	}
	reader.ClientConfig = inProcess{s.client}
	start, stop, err := reader.InitKubeCache(context.Background())
	if err != nil {
		return err
	}
	handler.APIConn = podsOfServices{reader.APIConn}
	c.OnStartup(start)
	c.OnShutdown(stop)
	return nil
}

// inProcess is a clientcmd.ClientConfig with a ready-made configuration. It is the only way to give the
// kubernetes plugin a client.
type inProcess struct{ config *rest.Config }

func (p inProcess) ClientConfig() (*rest.Config, error)   { return rest.CopyConfig(p.config), nil }
func (inProcess) RawConfig() (clientcmdapi.Config, error) { return clientcmdapi.Config{}, nil }
func (inProcess) Namespace() (string, bool, error)        { return "", false, nil }
func (inProcess) ConfigAccess() clientcmd.ConfigAccess    { return nil }
