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

	// The plugins of CoreDNS that a Corefile may name. Left out are those that
	// open ports or end the process (prometheus, health, ready, pprof, loop, debug),
	// that reload by themselves, and those for other clouds and stores: the
	// whole bundle, core/plugin, does not build beside kedge's etcd modules.
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/any"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/chaos"
	_ "github.com/coredns/coredns/plugin/dns64"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
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

// The directives that stand in for CoreDNS's own kubernetes directive, whose
// setup (plugin/kubernetes/setup.go) redirects klog for the whole process and
// dials the API over TCP. Both take the name of a source as first argument and
// what kubernetes takes after it.
const (
	// sharedDirective answers from the records that outlive a reload.
	//upstream:relies-on github.com/coredns/coredns/plugin/kubernetes/setup.go setup
	sharedDirective = "kedge-cluster"
	// ownDirective is a user's kubernetes stanza: its options may differ, so it
	// keeps records of its own.
	ownDirective = "kedge-kubernetes"
)

// directives are what a Corefile may contain, in the order in which they see a
// query, which is that of dnsserver.Directives in core/dnsserver/zdirectives.go.
//
//upstream:relies-on github.com/coredns/coredns/core/dnsserver/zdirectives.go Directives
var directives = []string{
	"metadata", "nsid", "bufsize", "bind", "errors", "log", "local",
	"dns64", "any", "chaos", "loadbalance", "rewrite", "acl", "cache", "header",
	"minimal", "template", "hosts", sharedDirective, ownDirective, "file",
	"forward", "whoami",
}

// Plugins are kedge's directives in CoreDNS's registries.
type Plugins struct {
	// sources are the running DNS components by the name their Corefiles give them.
	// CoreDNS hands a setup function nothing but the Corefile, so the way back has to
	// be here.
	sources sync.Map // string to *source
}

// Register makes kedge's directives known to CoreDNS, for all DNS components of this
// process. CoreDNS's registries belong to the process and panic at a second
// registration: call Register once.
func Register() (*Plugins, error) {
	p := &Plugins{}
	// What CoreDNS prints at start goes to standard output otherwise.
	caddy.Quiet = true
	dnsserver.Quiet = true
	plugin.Register(sharedDirective, func(c *caddy.Controller) error {
		return p.setUp(c, (*source).share)
	})
	plugin.Register(ownDirective, func(c *caddy.Controller) error {
		return p.setUp(c, (*source).own)
	})
	if err := dnsserver.SetDirectives(directives); err != nil {
		return nil, fmt.Errorf("register CoreDNS's directives: %w", err)
	}
	return p, nil
}

// source is where one DNS component has its records from.
type source struct {
	client *rest.Config
	// shared has the records all instances of CoreDNS answer from, one after
	// the other: a reload must not lose what is known while the API is away.
	// It is nil until the first Corefile is set up.
	shared *kubernetes.Kubernetes
	done   sync.WaitGroup
}

// share gives the handler the shared records, which are started the first time.
//
//upstream:relies-on github.com/coredns/coredns/plugin/kubernetes/kubernetes.go Kubernetes.InitKubeCache
func (s *source) share(_ *caddy.Controller, _ caddyfile.Dispenser, handler *kubernetes.Kubernetes) error {
	if s.shared != nil {
		handler.APIConn = s.shared.APIConn
		return nil
	}
	handler.ClientConfig = inProcess{s.client}
	// The returned functions are for a handler that dies with its instance.
	if _, _, err := handler.InitKubeCache(context.Background()); err != nil {
		return err
	}
	// Not the handler itself, which leads to all plugins of its instance.
	s.shared = &kubernetes.Kubernetes{APIConn: handler.APIConn}
	s.done.Go(handler.APIConn.Run)
	return nil
}

// own gives the handler of a stanza records that live as long as its instance.
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

// stop ends the watching of the API.
func (s *source) stop() error {
	if s.shared == nil {
		return nil
	}
	if err := s.shared.APIConn.Stop(); err != nil {
		return fmt.Errorf("stop watching the API: %w", err)
	}
	s.done.Wait()
	return nil
}

// inProcess is a clientcmd.ClientConfig around a ready-made configuration, the
// one thing of the kubernetes plugin that lets itself be set.
type inProcess struct{ config *rest.Config }

func (p inProcess) ClientConfig() (*rest.Config, error)   { return rest.CopyConfig(p.config), nil }
func (inProcess) RawConfig() (clientcmdapi.Config, error) { return clientcmdapi.Config{}, nil }
func (inProcess) Namespace() (string, bool, error)        { return "", false, nil }
func (inProcess) ConfigAccess() clientcmd.ConfigAccess    { return nil }
