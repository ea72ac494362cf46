package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/internal/cluster/join"
)

// The functions below are the column "who may call" in the table of routes.

// asTheAPIDecides lets all callers pass except former nodes. The API server's handler
// authenticates and authorizes the others, but does not know registrations.
func (s *Supervisor) asTheAPIDecides(next http.Handler) http.Handler {
	return s.allButFormerNodes(next)
}

// anyone lets everybody pass.
func anyone(next http.Handler) http.Handler { return next }

// nobody refuses everybody: it is for paths that the supervisor keeps for itself.
func nobody(http.Handler) http.Handler { return http.NotFoundHandler() }

// newcomers lets callers pass that show a join token.
func (s *Supervisor) newcomers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch ok, err := s.showsToken(r); {
		case err != nil:
			s.unavailable(w, err)
		case !ok:
			unauthorized(w)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// servers lets callers pass that show the cluster's own token. serverSecret returns its
// secret.
func (s *Supervisor) servers(next http.Handler) http.Handler {
	newcomers := s.newcomers(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, ok := r.BasicAuth(); !ok || user != join.ServerUser {
			unauthorized(w)
			return
		}
		newcomers.ServeHTTP(w, r)
	})
}

// etcdClients lets servers pass, which show a certificate for etcd.
func (s *Supervisor) etcdClients(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.cfg.Etcd == nil:
			http.NotFound(w, r)
		case s.cfg.PKI.CheckEtcdClient(r.TLS.PeerCertificates) != nil:
			unauthorized(w)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// serverSecret returns the secret of the token with which a route for servers is called.
func serverSecret(r *http.Request) string {
	_, secret, _ := r.BasicAuth()
	return secret
}

// nodes lets callers pass that show the certificate of a registered node. nodeOf returns
// the node.
func (s *Supervisor) nodes(next http.Handler) http.Handler {
	next = s.allButFormerNodes(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		node, err := s.cfg.PKI.NodeOf(r.TLS.PeerCertificates)
		if err != nil {
			unauthorized(w)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), nodeKey{}, node)))
	})
}

// newcomersAndNodes lets both pass.
func (s *Supervisor) newcomersAndNodes(next http.Handler) http.Handler {
	newcomers, nodes := s.newcomers(next), s.nodes(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			newcomers.ServeHTTP(w, r)
		} else {
			nodes.ServeHTTP(w, r)
		}
	})
}

type nodeKey struct{}

// nodeOf returns the node that calls a route for nodes.
func nodeOf(r *http.Request) string {
	node, _ := r.Context().Value(nodeKey{}).(string)
	return node
}

// showsToken tells whether a request has a valid join token.
func (s *Supervisor) showsToken(r *http.Request) (bool, error) {
	if user, secret, ok := r.BasicAuth(); ok {
		if err := s.cfg.Token.Known(); err != nil {
			return false, err
		}
		return join.CheckSecret(s.cfg.Dir, user, secret), nil
	}
	secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !join.IsBootstrapSecret(secret) {
		return false, nil
	}
	// Only the API server knows which bootstrap tokens exist and have not expired.
	ctx, cancel := context.WithTimeout(r.Context(), apiPatience)
	defer cancel()
	review, err := s.client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: secret}}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review token: %w", err)
	}
	return review.Status.Authenticated && slices.Contains(review.Status.User.Groups, join.NewcomersGroup), nil
}

// unauthorized gives the same answer to every fault in credentials, so that it reveals
// nothing.
func unauthorized(w http.ResponseWriter) {
	http.Error(w, "unauthorized", http.StatusUnauthorized)
}

// unavailable answers that the server cannot decide now, mostly because it is still
// starting.
func (s *Supervisor) unavailable(w http.ResponseWriter, err error) {
	if !errors.Is(err, context.Canceled) {
		s.log.WithError(err).Debug("cannot admit a node")
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, "the server is starting, or busy", http.StatusServiceUnavailable)
}
