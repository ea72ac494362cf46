package apiserver

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/emicklei/go-restful/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/lean"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// TestChain builds the real servers, and wants of their routes what shareParameters does, and of
// their start hooks what lengthenHooks does: in upstream's packages as they are now, and in all places.
func TestChain(t *testing.T) {
	server := buildChain(t, lean.New())
	routes, parameters, descriptions := 0, 0, map[*restful.Parameter]bool{}
	chain := []*genericapiserver.GenericAPIServer{server}
	for len(chain) < 3 {
		next, ok := chain[len(chain)-1].NextDelegate().(*genericapiserver.GenericAPIServer)
		if !ok {
			t.Fatalf("the chain has only %d servers", len(chain))
		}
		chain = append(chain, next)
	}
	for _, server := range chain {
		for _, service := range server.Handler.GoRestfulContainer.RegisteredWebServices() {
			for _, route := range service.Routes() {
				routes++
				for _, p := range route.ParameterDocs {
					parameters++
					descriptions[p] = true
				}
			}
		}
	}
	hooks, err := hooksOf(server)
	if err != nil {
		t.Fatal(err)
	}
	for name := range limitedHooks {
		entry := hooks.MapIndex(reflect.ValueOf(name))
		if !entry.IsValid() {
			t.Errorf("upstream has no start hook %s any more", name)
			continue
		}
		function := runtime.FuncForPC(entry.FieldByName("hook").Pointer()).Name()
		if !strings.Contains(function, ".lengthened.") {
			t.Errorf("the start hook %s is %s, which ends the process on a slow machine", name, function)
		}
	}
	if routes < 500 {
		t.Errorf("the servers have %d routes", routes)
	}
	if len(descriptions) == 0 || len(descriptions) > parameters/10 {
		t.Errorf("%d objects describe %d parameters", len(descriptions), parameters)
	}
}

// TestPlainChain builds the servers as upstream makes them.
func TestPlainChain(t *testing.T) {
	server := buildChain(t, nil)
	described := map[*restful.Parameter]bool{}
	parameters := 0
	for _, service := range server.Handler.GoRestfulContainer.RegisteredWebServices() {
		for _, route := range service.Routes() {
			for _, p := range route.ParameterDocs {
				parameters++
				described[p] = true
			}
		}
	}
	// Upstream shares a few itself. shareParameters leaves less than a tenth of them.
	if parameters == 0 || len(described) < parameters/2 {
		t.Errorf("%d objects describe %d parameters: the routes share them", len(described), parameters)
	}
}

// buildChain returns the outermost of the servers that Server.Run runs. Nothing answers.
func buildChain(t *testing.T, hooks *lean.Hooks) *genericapiserver.GenericAPIServer {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cluster, clock, address := config.Default().Cluster, pki.NewClock(dir.ClockFile()), netip.MustParseAddr("10.9.8.7")
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir: dir, NodeName: "node", NodeIPs: []netip.Addr{address},
		ClusterDomain: cluster.ClusterDomain, ServiceCIDRs: cluster.ServiceCIDRs(), Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	store := sqlite.New(sqlite.Config{Dir: dir.ServerDB(), Socket: filepath.Join(t.TempDir(), "kine.sock")})
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- store.Run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("the datastore ended: %v", err)
	}
	s, err := New(Config{
		Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443}, AdvertiseAddress: address, Cluster: cluster, Dir: dir,
		Datastore: Datastore(store.Endpoint()), Files: certificates.Files, Now: clock.Now, Lean: hooks,
	})
	if err != nil {
		t.Fatal(err)
	}
	chain, err := s.build(ctx, ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(chain.GenericAPIServer.Destroy)
	return chain.GenericAPIServer
}
