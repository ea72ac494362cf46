package supervisor

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/registration"
)

const (
	// maxRequest is the largest request to join, in bytes. A usual one has about 2 KiB.
	maxRequest = 64 << 10
	// apiPatience is how long the API server may take to answer. A node that
	// joins gives up after ten seconds.
	apiPatience = 5 * time.Second
)

// cacerts tells newcomers the cluster's authority. Their token has its hash.
func (s *Supervisor) cacerts(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-pem-file")
	_, _ = w.Write(s.cfg.PKI.ServerCA())
}

// cluster tells nodes the settings of the cluster.
func (s *Supervisor) cluster(w http.ResponseWriter, _ *http.Request) {
	settings := s.cfg.Settings
	settings.Authorities, settings.Registers = s.cfg.PKI.Authorities(), true
	if s.cfg.APIServers != nil {
		settings.Servers = s.cfg.APIServers()
	}
	s.answer(w, settings)
}

// join gives a newcomer the certificates of the node whose name it claims.
func (s *Supervisor) join(w http.ResponseWriter, r *http.Request) {
	request, ok := s.readRequest(w, r)
	if !ok {
		return
	}
	uid, err := s.cfg.Registry.Join(r.Context(), s.claim(request))
	if err != nil {
		s.refuse(w, r, request, err)
		return
	}
	if s.sign(w, request, uid) {
		s.log.Infof("Node %s joins from %s", request.Node, r.RemoteAddr)
	}
}

// renew gives a node new certificates under its name.
func (s *Supervisor) renew(w http.ResponseWriter, r *http.Request) {
	request, ok := s.readRequest(w, r)
	if !ok {
		return
	}
	if request.Node != nodeOf(r) {
		http.Error(w, "a node can renew only its own certificates", http.StatusForbidden)
		return
	}
	_, shown, _ := pki.RegistrationOf(r.TLS.PeerCertificates[0].Subject)
	uid, err := s.cfg.Registry.Renew(r.Context(), shown, s.claim(request))
	if err != nil {
		s.refuse(w, r, request, err)
		return
	}
	s.sign(w, request, uid)
}

// claim returns what a request asks the registry for.
func (s *Supervisor) claim(request join.Request) registration.Claim {
	return registration.Claim{
		Node: request.Node, Addresses: request.Addresses, Password: request.Password, CertificatesEnd: s.cfg.PKI.NodeEnd(),
	}
}

// refuse answers a request that the registry does not grant.
func (s *Supervisor) refuse(w http.ResponseWriter, r *http.Request, request join.Request, err error) {
	var (
		taken   *registration.TakenError
		revoked *registration.RevokedError
		address *registration.AddressError
	)
	switch {
	case errors.As(err, &taken), errors.As(err, &revoked), errors.As(err, &address):
		s.log.Warnf("Refused certificates for node %s, which %s asked for: %v", request.Node, r.RemoteAddr, err)
		http.Error(w, err.Error(), http.StatusForbidden)
	case errors.Is(err, registration.ErrRefused):
		unauthorized(w)
	default:
		s.unavailable(w, err)
	}
}

// sign answers a request with certificates for the registration uid.
func (s *Supervisor) sign(w http.ResponseWriter, request join.Request, uid string) bool {
	certificates, err := s.cfg.PKI.SignNode(request.Node, uid, request.Addresses, request.Requests)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	s.answer(w, join.Response{
		ServerCA:     s.cfg.PKI.ServerCA(),
		ClientCA:     s.cfg.PKI.ClientCA(),
		Certificates: certificates,
	})
	return true
}

// readRequest reads and checks a request. If it is faulty, readRequest answers it and
// returns false.
func (s *Supervisor) readRequest(w http.ResponseWriter, r *http.Request) (join.Request, bool) {
	var request join.Request
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&request)
	if err == nil {
		for i, ip := range request.Addresses {
			request.Addresses[i] = netip.Addr.Unmap(ip)
		}
		err = s.cfg.PKI.CheckNode(request.Node, request.Addresses)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return request, err == nil
}

func (s *Supervisor) answer(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	// If the connection broke, the node tries again.
	_ = json.NewEncoder(w).Encode(body)
}

// connect opens the tunnel of the node that calls.
func (s *Supervisor) connect(w http.ResponseWriter, r *http.Request) {
	s.cfg.Tunnel(w, r, nodeOf(r))
}
