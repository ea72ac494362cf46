package apiserver

import (
	"crypto/x509"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/kedge-dev/kedge/internal/controlplane/inprocess"
)

// healthPaths are the only paths that answer without authentication, for load balancers
// and service managers. The user can change that.
var healthPaths = []apiserver.AnonymousAuthCondition{{Path: "/livez"}, {Path: "/readyz"}, {Path: "/healthz"}}

// authenticate puts kedge's own authenticators around upstream's, which knows
// service accounts, bootstrap tokens, OIDC, webhooks and front proxies.
//
//upstream:relies-on k8s.io/kubernetes/pkg/kubeapiserver/authenticator/config.go Config.New
func authenticate(upstream authenticator.Request, clientCA dynamiccertificates.CAContentProvider, now func() time.Time, o *kubeoptions.BuiltInAuthenticationOptions) authenticator.Request {
	chain := []authenticator.Request{
		inprocess.Authenticator(),
		certificateAuthenticator(clientCA, now),
		upstream,
	}
	// If the user sets anonymous-auth or authentication-config, upstream decides about
	// anonymous requests.
	if !o.Anonymous.FlagsSet && o.AuthenticationConfigFile == "" {
		chain = append(chain, anonymous.NewAuthenticator(healthPaths))
	}
	return union.New(chain...)
}

// certificateAuthenticator judges client certificates by kedge's clock. The system's
// clock may be years behind on a board without a battery. Upstream's authenticator,
// which uses the system's clock, comes after this one and is otherwise the same.
func certificateAuthenticator(clientCA dynamiccertificates.CAContentProvider, now func() time.Time) authenticator.Request {
	return group.NewAuthenticatedGroupAdder(x509request.NewDynamic(func() (x509.VerifyOptions, bool) {
		options, ok := clientCA.VerifyOptions()
		options.CurrentTime = now()
		return options, ok
	}, x509request.CommonNameUserConversion))
}
