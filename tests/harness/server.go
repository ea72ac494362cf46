package harness

import (
	"context"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	kubeconfig = "/etc/kedge/kedge.yaml"
	tokenFile  = "/var/lib/kedge/server/token"
	// apiTimeout limits how long one request may take.
	apiTimeout = 10 * time.Second
)

// Server is a `kedge server` on a host.
type Server struct{ *daemon }

// StartServer starts `kedge server` with args and does not wait for it. If the test fails, it shows the
// end of the server's log.
func (h *Host) StartServer(t T, args ...string) *Server {
	t.Helper()
	return &Server{h.startDaemon(t, "server", args...)}
}

// StartConfiguredServer starts `kedge server` without arguments, so that only the files of the host
// configure it, and does not wait for it. It adds a drop-in that puts pods into the host's cgroup.
func (h *Host) StartConfiguredServer(t T) *Server {
	t.Helper()
	h.WriteFile("/etc/kedge/config.yaml.d/99-harness.yaml", "kubelet-arg+: [cgroup-root="+h.Cgroup()+"]\n")
	return &Server{h.startCommand(t, "server")}
}

// Restart stops the server in order, starts it and waits until it is ready.
func (s *Server) Restart() {
	s.t.Helper()
	s.Terminate()
	s.Start()
	s.WaitReady()
}

// WaitReady waits until the API answers and the node is Ready.
func (s *Server) WaitReady() {
	s.t.Helper()
	s.waitFor("the node of "+s.Host.Name+" to be Ready", func() error {
		return s.ask(func(ctx context.Context, client kubernetes.Interface) error {
			return s.nodeReady(ctx, client, s.Host.Name)
		})
	})
}

// WaitAPI waits until the API answers. It is for a server that runs no node.
func (s *Server) WaitAPI() {
	s.t.Helper()
	s.waitFor("the API of "+s.Host.Name, func() error {
		return s.ask(func(context.Context, kubernetes.Interface) error { return nil })
	})
}

// ask calls question if the API is ready.
func (s *Server) ask(question func(context.Context, kubernetes.Interface) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), Slowly(apiTimeout))
	defer cancel()
	cfg, err := s.config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	return question(ctx, client)
}

// Token returns the join token.
func (s *Server) Token() string {
	s.t.Helper()
	text, err := os.ReadFile(s.Host.Path(tokenFile))
	if err != nil {
		s.t.Fatalf("read token: %v", err)
	}
	return strings.TrimSpace(string(text))
}

// config returns the administrator's client configuration for use from inside the host.
func (s *Server) config() (*rest.Config, error) {
	text, err := os.ReadFile(s.Host.Path(kubeconfig))
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return nil, err
	}
	cfg.Dial = s.Host.DialContext
	cfg.QPS = -1
	return cfg, nil
}

// RESTConfig returns the administrator's client configuration for use from inside the host.
func (s *Server) RESTConfig() *rest.Config {
	s.t.Helper()
	cfg, err := s.config()
	if err != nil {
		s.t.Fatalf("read kubeconfig: %v", err)
	}
	return cfg
}

// Client returns a client of the API with the administrator's rights.
func (s *Server) Client() kubernetes.Interface {
	s.t.Helper()
	client, err := kubernetes.NewForConfig(s.RESTConfig())
	if err != nil {
		s.t.Fatalf("make client: %v", err)
	}
	return client
}
