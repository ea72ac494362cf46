package ingress

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const bcrypted = "$2y$10$abcdefghijklmnopqrstuuWnGYj9hzyvXcmeOUDMIvFjGEBLvnW1C"

// TestAnnotations has annotations with good and bad values. With a bad one nobody is served.
func TestAnnotations(t *testing.T) {
	for _, test := range []struct {
		key, value string
		fault      string
		check      func(settings) bool
	}{
		{AnnotationMaxBody, "10Mi", "", func(s settings) bool { return s.maxBody == 10<<20 }},
		{AnnotationMaxBody, "1500", "", func(s settings) bool { return s.maxBody == 1500 }},
		{AnnotationMaxBody, "0", "above 0", nil},
		{AnnotationMaxBody, "-1", "above 0", nil},
		{AnnotationMaxBody, "100m", "above 0", nil},
		{AnnotationMaxBody, "10 MB", "not a quantity", nil},
		{AnnotationTimeout, "90s", "", func(s settings) bool { return s.timeout == 90*time.Second }},
		{AnnotationTimeout, "90", "not a duration", nil},
		{AnnotationTimeout, "-1s", "not between", nil},
		{AnnotationTimeout, "1000h", "not between", nil},
		{AnnotationRedirect, "false", "", func(s settings) bool { return !s.redirect }},
		{AnnotationRedirect, "yes", "neither true nor false", nil},
		{AnnotationProtocol, "GRPC", "", func(s settings) bool { return s.grpc && s.protocol == plainH2 }},
		{AnnotationProtocol, "FCGI", "none of", nil},
		{AnnotationAuthSecret, "users", "", func(s settings) bool { return s.auth.Users == "a:"+bcrypted+"\nb:{SHA}x" }},
		{AnnotationAuthSecret, "traefik", "", func(s settings) bool { return s.auth.Users == "a:$apr1$x" }},
		{AnnotationAuthSecret, "", "it is empty", nil},
		{AnnotationAuthSecret, "missing", "does not exist", nil},
		{AnnotationAuthSecret, "keyless", "no key auth", nil},
		{AnnotationAuthSecret, "empty", "no user", nil},
		{AnnotationAuthSecret, "plain", "line 2: the hash must be", nil},
		{AnnotationAuthSecret, "nameless", "NAME:HASH", nil},
		{AnnotationAuthSecret, "costly", "cost of bcrypt is 31", nil},
		{AnnotationAuthSecret, "spoiled", "not a hash of bcrypt", nil},
		{AnnotationAuthRealm, "shop", "no " + AnnotationAuthSecret, nil},
		{AnnotationAuthRealm, "a\"b", "is not allowed", nil},
		{AnnotationAuthRealm, strings.Repeat("a", 200), "longer", nil},
		{prefix + "auth-secrets", "users", "kedge knows only", nil},
		{"nginx.ingress.kubernetes.io/auth-secret", "users", "", func(s settings) bool { return s == settings{} }},
	} {
		t.Run(test.key+"="+test.value, func(t *testing.T) {
			w := newWorld().service("a").ingress("i", rules(on("foo.com", "Prefix / a")), annotated(test.key, test.value)).
				secret("users", map[string]string{"auth": "# staff\n a:" + bcrypted + "\r\n\nb:{SHA}x\n", "users": "c:{SHA}y"}).
				secret("traefik", map[string]string{"users": "a:$apr1$x"}).
				secret("keyless", map[string]string{"password": "a:{SHA}x"}).
				secret("empty", map[string]string{"auth": "#a:{SHA}x\n"}).
				secret("plain", map[string]string{"auth": "a:{SHA}x\nb:secret"}).
				secret("nameless", map[string]string{"auth": ":{SHA}x"}).
				secret("costly", map[string]string{"auth": "a:" + strings.Replace(bcrypted, "$10$", "$31$", 1)}).
				secret("spoiled", map[string]string{"auth": "a:$2y$"})
			result := Compile(&w.Input)
			if test.key == AnnotationAuthSecret && test.value != "" && !result.Secrets[types.NamespacedName{Namespace: "shop", Name: test.value}] {
				t.Errorf("the Ingress refers to the Secrets %v", result.Secrets)
			}
			if test.fault != "" {
				wantFaults(t, result, "i "+ReasonBadAnnotation)
				if !strings.Contains(result.Faults[0].Message, test.fault) || strings.Contains(result.Faults[0].Message, "secret\"") {
					t.Errorf("fault %q, want %q in it", result.Faults[0].Message, test.fault)
				}
				if got := ask(result, "http", "foo.com", "/"); got != "503" && got != "redirect" {
					t.Errorf("answered by %s, want 503", got)
				}
				return
			}
			wantFaults(t, result)
			c := &compiler{in: &w.Input, out: result}
			if s := c.annotations(&entry{Ingress: w.Ingresses[0], faults: map[string]bool{}}); !test.check(s) {
				t.Errorf("got %+v", s)
			}
			for _, rule := range result.State.Routes["Ingress/shop/i/foo.com"].Rules {
				if (rule.Auth != nil) != (test.key == AnnotationAuthSecret) {
					t.Errorf("the rule has the users %v", rule.Auth)
				}
			}
		})
	}
}

// TestRealm has a realm with its Secret.
func TestRealm(t *testing.T) {
	w := newWorld().service("a").secret("users", map[string]string{"auth": "a:{SHA}x"}).
		ingress("i", rules(on("foo.com", "Prefix / a")), annotated(AnnotationAuthRealm, "The shop"), annotated(AnnotationAuthSecret, "users"))
	result := Compile(&w.Input)
	wantFaults(t, result)
	if auth := result.State.Routes["Ingress/shop/i/foo.com"].Rules[0].Auth; auth == nil || auth.Realm != "The shop" {
		t.Errorf("got %+v", auth)
	}
}
