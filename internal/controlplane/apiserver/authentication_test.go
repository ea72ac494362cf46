package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// TestAuthenticate has a certificate that was valid in 2020 only.
func TestAuthenticate(t *testing.T) {
	certificate, ca := expiredCertificate(t)
	upstream := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return nil, false, errors.New("upstream knows nobody")
	})
	tests := map[string]struct {
		path        string
		certificate bool
		year        int
		configure   func(*kubeoptions.BuiltInAuthenticationOptions)
		want        string
	}{
		"a certificate in its time":   {path: "/api", certificate: true, year: 2020, want: "jane [devs system:authenticated]"},
		"a certificate out of time":   {path: "/api", certificate: true, year: 2026},
		"nobody":                      {path: "/api", year: 2026},
		"nobody asking for health":    {path: "/readyz", year: 2026, want: "system:anonymous [system:unauthenticated]"},
		"nobody asking for details":   {path: "/readyz/etcd", year: 2026},
		"anonymous-auth given":        {path: "/readyz", year: 2026, configure: func(o *kubeoptions.BuiltInAuthenticationOptions) { o.Anonymous.FlagsSet = true }},
		"authentication-config given": {path: "/readyz", year: 2026, configure: func(o *kubeoptions.BuiltInAuthenticationOptions) { o.AuthenticationConfigFile = "x" }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := kubeoptions.NewBuiltInAuthenticationOptions().WithAll()
			if test.configure != nil {
				test.configure(o)
			}
			now := func() time.Time { return time.Date(test.year, 6, 1, 0, 0, 0, 0, time.UTC) }
			request, _ := http.NewRequest(http.MethodGet, "https://api"+test.path, nil)
			request.TLS = &tls.ConnectionState{}
			if test.certificate {
				request.TLS.PeerCertificates = []*x509.Certificate{certificate}
			}
			response, ok, _ := authenticate(upstream, ca, now, o).AuthenticateRequest(request)
			got := ""
			if ok {
				got = fmt.Sprint(response.User.GetName(), " ", response.User.GetGroups())
			}
			if got != test.want {
				t.Errorf("authenticated as %q, want %q", got, test.want)
			}
		})
	}
}

func expiredCertificate(t *testing.T) (*x509.Certificate, dynamiccertificates.CAContentProvider) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "jane", Organization: []string{"devs"}},
		NotBefore:             time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:              time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA:                  true,
		BasicConstraintsValid: true,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := dynamiccertificates.NewStaticCAContent("test", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return certificate, ca
}
