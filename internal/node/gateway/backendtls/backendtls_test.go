package backendtls

import (
	"crypto/tls"
	"errors"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestConfig sees that nothing that is faulty makes a backend trusted. Package requests tests
// real connections.
func TestConfig(t *testing.T) {
	for name, test := range map[string]struct {
		security routing.BackendTLS
		insecure bool // as crypto/tls has it
		want     error
	}{
		"a name":                {routing.BackendTLS{ServerName: "a"}, false, nil},
		"a faulty authority":    {routing.BackendTLS{ServerName: "a", Authorities: "x"}, false, nil},
		"other names":           {routing.BackendTLS{ServerName: "a", Names: []string{"b"}}, true, errNoCertificate},
		"a URI":                 {routing.BackendTLS{ServerName: "a", URIs: []string{"spiffe://a"}, Authorities: "x"}, true, errNoCertificate},
		"whatever the user has": {routing.BackendTLS{Insecure: true}, true, nil},
	} {
		config := Config(&test.security, &routing.Certificate{Chain: "x", Key: "y"})
		if config.InsecureSkipVerify != test.insecure || len(config.Certificates) > 0 || (config.RootCAs != nil) != (test.security.Authorities != "") {
			t.Errorf("%s: %+v", name, config)
		}
		var err error
		if config.VerifyConnection != nil {
			err = config.VerifyConnection(tls.ConnectionState{})
		}
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeyOf(t *testing.T) {
	one, same, other := &routing.BackendTLS{ServerName: "a"}, &routing.BackendTLS{ServerName: "a"}, &routing.BackendTLS{ServerName: "b"}
	certificate := &routing.Certificate{Chain: "x"}
	if KeyOf(one, nil) != KeyOf(same, nil) || KeyOf(one, nil) == KeyOf(other, nil) || KeyOf(one, nil) == KeyOf(one, certificate) || KeyOf(nil, nil) == KeyOf(one, nil) {
		t.Error("the keys of different settings are the same, or those of the same differ")
	}
}
