package supervisor

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// notShared is the answer of a server that cannot have others.
const notShared = "the server keeps its state in SQLite, which is for one server: restart it with --cluster-init first"

// secrets gives a server the secrets that all servers of the cluster share. They are
// encrypted under the token that the server has shown, because a proxy on the way may end
// TLS.
func (s *Supervisor) secrets(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Etcd == nil {
		http.Error(w, notShared, http.StatusForbidden)
		return
	}
	secrets, err := pki.Secrets(s.cfg.Dir)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	sealed, err := join.Seal(serverSecret(r), secrets)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	s.log.Infof("Gave the cluster's secrets to the server at %s", r.RemoteAddr)
	s.answer(w, sealed)
}

// member adds a server's etcd member to the cluster.
func (s *Supervisor) member(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Etcd == nil {
		http.Error(w, notShared, http.StatusForbidden)
		return
	}
	var request join.MemberRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := s.cfg.Etcd.Admit(r.Context(), request)
	switch {
	case err == nil:
		s.answer(w, answer)
	case errors.Is(err, join.ErrNotNow):
		s.log.Infof("Server %s has to wait before its etcd member is added: %v", request.Name, err)
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		s.log.Warnf("Refused server %s from %s: %v", request.Name, r.RemoteAddr, err)
		http.Error(w, err.Error(), http.StatusForbidden)
	}
}

// members tells servers without etcd which servers have it, and whether this server's
// etcd works.
func (s *Supervisor) members(w http.ResponseWriter, _ *http.Request) {
	addresses, usable := s.cfg.Etcd.Members()
	w.Header().Set("Content-Type", "application/json")
	if !usable {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(join.EtcdMembers{Servers: addresses})
}

// rotate replaces the cluster's token on all servers, and answers with the new one.
func (s *Supervisor) rotate(w http.ResponseWriter, r *http.Request) {
	if s.cfg.Token == nil {
		http.Error(w, "this server shares its token with no other server", http.StatusForbidden)
		return
	}
	var request join.RotateRequest
	// Before requests had a body, servers chose the token.
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&request); err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	token, err := s.cfg.Token.Rotate(r.Context(), request.Token)
	if errors.Is(err, join.ErrToken) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err != nil {
		s.log.Warnf("Cannot replace the cluster's token: %v", err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s.log.Infof("The cluster's token was replaced from %s", r.RemoteAddr)
	s.answer(w, join.RotateResponse{Token: token})
}
