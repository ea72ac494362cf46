package ingress

import (
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// FuzzAnnotations gives an Ingress any annotations, and any Secret with passwords. If one of
// them cannot be used, nobody is served. If a password was asked for, nobody is served without.
func FuzzAnnotations(f *testing.F) {
	for _, seed := range [][7]string{
		{"true", "10Mi", "30s", "users", "realm", "HTTPS", "a:{SHA}x"},
		{"false", "1e3", "1h", "users", "", "grpc", "a:$2y$10$abcdefghijklmnopqrstuuWnGYj9hzyvXcmeOUDMIvFjGEBLvnW1C"},
		{"", "", "", "", "", "", ""},
		{"1", "0", "-1s", "other", "\"", "X", "a:b"},
		{"true", "9223372036854775808", "9999999h", "users", "a\nb", "H2C", "\x00:$2"},
		{"true", "1Ei", "1ns", "users", "x", "HTTP", "#\n\n a:$apr1$\r\nb:"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4], seed[5], seed[6])
	}
	f.Fuzz(func(t *testing.T, redirect, size, timeout, secret, realm, protocol, users string) {
		w := newWorld().service("a").secret("users", map[string]string{"auth": users}).
			ingress("i", rules(on("foo.com", "Prefix / a")))
		for key, value := range map[string]string{
			AnnotationRedirect: redirect, AnnotationMaxBody: size, AnnotationTimeout: timeout,
			AnnotationAuthSecret: secret, AnnotationAuthRealm: realm, AnnotationProtocol: protocol,
		} {
			if value != "" {
				annotated(key, value)(w.Ingresses[0])
			}
		}
		result := Compile(&w.Input)
		if err := (&routing.Update{Whole: true, State: result.State}).Check(); err != nil {
			t.Errorf("nodes refuse the update: %v", err)
		}
		bad := false
		for _, fault := range result.Faults {
			bad = bad || fault.Reason == ReasonBadAnnotation
			if len(fault.Message) > 1024 {
				t.Errorf("a fault has %d bytes, more than an Event", len(fault.Message))
			}
		}
		for _, rule := range result.State.Routes["Ingress/shop/i/foo.com"].Rules {
			open := rule.Targets[0].Backend != ""
			if open == bad {
				t.Errorf("requests are served: %t, with the faults %v", open, result.Faults)
			}
			if open && secret != "" && (rule.Auth == nil || !strings.Contains(rule.Auth.Users, ":") || strings.ContainsAny(rule.Auth.Realm, "\r\n\"")) {
				t.Errorf("the Secret %q was asked for, and the rule has %+v", secret, rule.Auth)
			}
			if rule.MaxBody < 0 || rule.Timeout < 0 || rule.Timeout > maxTimeout {
				t.Errorf("the rule has the limits %d and %s", rule.MaxBody, rule.Timeout)
			}
		}
	})
}
