package serverlb

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// The server in use is asked every interval and may take patience to answer. With the
// time to find another server, clients are moved in less than 5 s.
const (
	interval = time.Second
	patience = 2500 * time.Millisecond
	// maxAnswer is how many bytes of an answer are read at most.
	maxAnswer = 64 << 10
)

// errStopping says that a server is not ready because it stops in order.
var errStopping = errors.New("the server is stopping")

// FollowConfig is what Follow has to know.
type FollowConfig struct {
	// Source calls learn with the list of servers whenever it changes, until ctx ends. If
	// Source is nil, the servers themselves tell the list in each answer, as
	// join.EtcdMembers, whether they work or not.
	Source func(ctx context.Context, learn func(servers []string)) error
	// Path is where a working server answers 200.
	Path string
	// TLS has the cluster's authority and a certificate that allows the question.
	TLS *tls.Config
}

// ReadyPath is the FollowConfig.Path of servers with an API.
const ReadyPath = "/readyz"

// Follow returns the component that learns the addresses of the servers. It moves the
// clients when the server in use is no longer ready and another one is.
func (b *Balancer) Follow(cfg FollowConfig) component.Component {
	return component.Func("apilb", func(ctx context.Context, ready func()) error {
		ready()
		checker := &checker{balancer: b, tls: cfg.TLS, path: cfg.Path, learns: cfg.Source == nil, interval: interval, patience: patience}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var checking sync.WaitGroup
		checking.Go(func() { checker.run(ctx) })
		defer checking.Wait()
		if cfg.Source != nil {
			if err := cfg.Source(ctx, b.Learn); err != nil {
				cancel()
				return err
			}
		}
		<-ctx.Done()
		return nil
	})
}

// Endpoints returns a FollowConfig.Source for servers with an API, each of which writes
// its own address. The client reads the endpoints of the Service default/kubernetes,
// through the Balancer.
func Endpoints(client *rest.Config) func(context.Context, func([]string)) error {
	return func(ctx context.Context, learn func([]string)) error {
		api, err := kubernetes.NewForConfig(client)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		// While the last of the servers is stopping, the list is empty.
		source := cache.NewListWatchFromClient(api.DiscoveryV1().RESTClient(), "endpointslices", metav1.NamespaceDefault,
			fields.OneTermEqualSelector("metadata.name", "kubernetes"))
		_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: source,
			ObjectType:    &discoveryv1.EndpointSlice{},
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc:    func(object any) { learn(endpoints(object)) },
				UpdateFunc: func(_, updated any) { learn(endpoints(updated)) },
			},
		})
		controller.RunWithContext(ctx)
		return nil
	}
}

// endpoints returns the addresses in an EndpointSlice.
func endpoints(object any) []string {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	var addresses []string
	for _, port := range slice.Ports {
		for _, endpoint := range slice.Endpoints {
			if port.Port != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) && len(endpoint.Addresses) > 0 {
				addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
			}
		}
	}
	return addresses
}

// checker asks servers whether they are ready.
type checker struct {
	balancer *Balancer
	tls      *tls.Config
	path     string
	// learns tells whether the answers list the servers.
	learns             bool
	interval, patience time.Duration
	// clients has one client for each server, each with one connection. Only run changes
	// the map.
	clients map[string]*http.Client
}

func (c *checker) run(ctx context.Context) {
	defer c.forget(nil)
	tick := time.NewTicker(c.interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.check(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// check moves the clients if the server in use is not ready and another is. If there is
// only one server, it is not asked, unless its answer lists the servers.
func (c *checker) check(ctx context.Context) {
	current := c.balancer.inUse()
	others := c.balancer.others(current)
	c.forget(append(others, current))
	if current == "" || len(others) == 0 && !c.learns {
		return
	}
	why := c.ask(ctx, c.client(current))
	if why == nil || ctx.Err() != nil {
		return
	}
	other := c.firstReady(ctx, others)
	switch {
	case other == "":
	case errors.Is(why, errStopping):
		c.balancer.leave(current, other)
	default:
		c.balancer.log.Warnf("The server at %s is not ready: %v", current, why)
		c.balancer.move(current, other)
	}
}

// firstReady asks several servers at once and returns the first that is ready, or "".
func (c *checker) firstReady(ctx context.Context, servers []string) string {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan string, len(servers))
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	for _, server := range servers {
		client := c.client(server)
		asked.Go(func() {
			if c.ask(ctx, client) != nil {
				server = ""
			}
			answers <- server
		})
	}
	for range servers {
		if server := <-answers; server != "" {
			return server
		}
	}
	return ""
}

// ask returns the reason why a server is not ready, nil if it is.
func (c *checker) ask(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+pki.APIName+c.path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		// A connection that does not answer must not be used again.
		client.CloseIdleConnections()
		return err
	}
	answer, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	_ = response.Body.Close()
	if c.learns {
		var members join.EtcdMembers
		if json.Unmarshal(answer, &members) == nil {
			c.balancer.Learn(members.Servers)
		}
	}
	switch {
	case response.StatusCode == http.StatusOK:
		return nil
	// Its name is in k8s.io/apiserver/pkg/server/healthz/healthz.go, shutdown.
	//upstream:relies-on k8s.io/apiserver/pkg/server/healthz/healthz.go shutdown.Name handleRootHealth
	case bytes.Contains(answer, []byte("[-]shutdown ")):
		return errStopping
	}
	return fmt.Errorf("the server answers %s", response.Status)
}

func (c *checker) client(server string) *http.Client {
	if client := c.clients[server]; client != nil {
		return client
	}
	client := &http.Client{Timeout: c.patience, Transport: &http.Transport{
		TLSClientConfig:   c.tls.Clone(),
		ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dial(ctx, network, server)
		},
	}}
	if c.clients == nil {
		c.clients = map[string]*http.Client{}
	}
	c.clients[server] = client
	return client
}

// forget closes the connections to all servers except the known ones.
func (c *checker) forget(known []string) {
	for server, client := range c.clients {
		if !slices.Contains(known, server) {
			client.CloseIdleConnections()
			delete(c.clients, server)
		}
	}
}
