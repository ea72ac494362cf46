package keeper

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
	"github.com/kedge-dev/kedge/internal/throwaway/registry"
)

const (
	// nodesPort is the port of the bridge at which nodes reach the registry.
	nodesPort = 5000
	// headerPatience limits how long a client may take to send the header of a request.
	headerPatience = time.Minute
	// idlePatience limits how long a connection may be without a request: other users of the machine can open some, too.
	idlePatience = 2 * time.Minute
)

// imageServer serves the images that users push to the cluster.
type imageServer struct {
	images  *registry.Registry
	servers []*http.Server
}

// serveImages opens the registry of the cluster, if it has one: for users of the machine on loopback, and for
// nodes on the bridge.
func (k *keeper) serveImages() (*imageServer, error) {
	folder := filepath.Join(k.store.RunFolder(k.Name), "images")
	if !k.Temporary {
		folder = filepath.Join(k.store.DataFolder(k.Name), "images")
	}
	images, err := registry.New(folder)
	if err != nil {
		return nil, err
	}
	s := &imageServer{images: images}
	clients, err := listen("registry", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), k.Registry))
	if err != nil {
		s.close()
		return nil, err
	}
	s.serve(clients, images.Clients(k.Owner))
	err = hosts.Within(k.network.NS, func() error {
		nodes, err := net.Listen("tcp4", k.nodesAddress().String())
		if err == nil {
			s.serve(nodes, images.Nodes())
		}
		return err
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("serve images to nodes: %w", err)
	}
	return s, nil
}

// nodesAddress returns where nodes reach the registry.
func (k *keeper) nodesAddress() netip.AddrPort {
	return netip.AddrPortFrom(k.Addresses().Address(hosts.Gateway), nodesPort)
}

func (s *imageServer) serve(listener net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headerPatience, IdleTimeout: idlePatience}
	s.servers = append(s.servers, server)
	go func() { _ = server.Serve(listener) }()
}

func (s *imageServer) close() {
	for _, server := range s.servers {
		server.Close()
	}
	s.images.Close()
}
