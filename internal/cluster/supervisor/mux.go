package supervisor

import (
	"net/http"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
)

// route is one line of the table of routes.
type route struct {
	// method is empty if all methods fit.
	method string
	// path is the exact path, or a whole subtree if it ends in a slash.
	path string
	// who wraps the handler in the check of the caller.
	who     func(http.Handler) http.Handler
	handler http.Handler
}

// routes is the table. The first route that fits a request answers it.
func (s *Supervisor) routes() []route {
	return []route{
		// method, path, who may call, handler
		{"GET", join.CACertsPath, anyone, http.HandlerFunc(s.cacerts)},
		{"GET", join.ClusterPath, s.newcomersAndNodes, http.HandlerFunc(s.cluster)},
		{"POST", join.JoinPath, s.newcomers, http.HandlerFunc(s.join)},
		{"POST", join.RenewPath, s.nodes, http.HandlerFunc(s.renew)},
		{"GET", join.ConnectPath, s.nodes, http.HandlerFunc(s.connect)},
		{"GET", nodestream.PoliciesPath, s.nodes, nodeStream(s, nodestream.Policies(), s.cfg.Policies)},
		{"GET", nodestream.RoutesPath, s.nodes, nodeStream(s, nodestream.Routes(), s.cfg.Routes)},
		{"GET", nodestream.OrdersPath, s.nodes, nodeStream(s, nodestream.Orders(), s.cfg.Orders)},
		{"", volumedata.Path, s.nodes, s.volumes()},
		{"GET", upgrades.ExecutablePath, s.nodes, http.HandlerFunc(s.executable)},
		{"GET", join.SecretsPath, s.servers, http.HandlerFunc(s.secrets)},
		{"POST", join.MemberPath, s.servers, http.HandlerFunc(s.member)},
		{"POST", join.TokenPath, s.servers, http.HandlerFunc(s.rotate)},
		{"GET", join.EtcdPath, s.etcdClients, http.HandlerFunc(s.members)},
		{"POST", "/etcdserverpb.KV/", s.etcdClients, s.cfg.Etcd},
		{"POST", "/etcdserverpb.Watch/", s.etcdClients, s.cfg.Etcd},
		{"POST", "/etcdserverpb.Lease/", s.etcdClients, s.cfg.Etcd},
		{"POST", "/etcdserverpb.Cluster/", s.etcdClients, s.cfg.Etcd},
		{"POST", "/etcdserverpb.Maintenance/", s.etcdClients, s.cfg.Etcd},
		{"", "/v1-kedge/", nobody, nil},
		{"", "/", s.asTheAPIDecides, s.cfg.API},
	}
}

// volumes keeps the contents of volumes. A server without a backup has nothing to do with them.
func (s *Supervisor) volumes() http.Handler {
	if s.cfg.Volumes == nil {
		return http.NotFoundHandler()
	}
	return volumedata.Handler(s.cfg.Volumes, nodeOf)
}

// mux dispatches by a table of routes. It is not http.ServeMux, because that redirects
// paths such as /a//b, which are valid for a Service's proxy subresource.
type mux []route

func newMux(routes []route) mux {
	for i := range routes {
		routes[i].handler = routes[i].who(routes[i].handler)
	}
	return routes
}

// freshen makes clients whose certificate must have been renewed by now open a new
// connection (GOAWAY), on which they show the new certificate. A connection may last for
// years, and each request on it is judged by the certificate that was shown at its
// beginning.
func (s *Supervisor) freshen(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && s.cfg.PKI.Aging(r.TLS.PeerCertificates) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func (m mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, route := range m {
		if route.fits(r.Method, r.URL.Path) {
			route.handler.ServeHTTP(w, r)
			return
		}
	}
	http.NotFound(w, r)
}

func (r *route) fits(method, path string) bool {
	if r.method != "" && r.method != method {
		return false
	}
	// "/" also fits requests without a path, such as OPTIONS *.
	return r.path == "/" || r.path == path ||
		strings.HasSuffix(r.path, "/") && strings.HasPrefix(path, r.path)
}
