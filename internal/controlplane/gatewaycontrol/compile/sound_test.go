package compile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// checkState checks that nodes accept everything of a result, as in package gateway, where the
// sockets follow from the fronts.
func checkState(t *testing.T, result *Result) {
	t.Helper()
	update := routing.Update{Whole: true, State: result.State}
	update.Sockets = map[string]*routing.Socket{}
	for i, f := range result.Fronts {
		for j, port := range f.Ports {
			var listeners []routing.Listener
			for _, l := range port.Listeners {
				listeners = append(listeners, l.Listener)
			}
			name := fmt.Sprintf("%d-%d", i, j)
			update.Sockets[name] = &routing.Socket{
				Transport: port.Transport, Port: uint16(1 + 1000*i + j), PublicPort: port.Number, Listeners: listeners, HTTP3: port.HTTP3,
			}
		}
	}
	if err := update.Check(); err != nil {
		t.Errorf("nodes refuse the update: %v", err)
	}
}

// TestRulesThatNodesRefuse has values that the definitions of the kinds let through.
func TestRulesThatNodesRefuse(t *testing.T) {
	regexps := ""
	for range 12 {
		regexps += `{path: {type: RegularExpression, value: "/[a-z]{1000}"}}, `
	}
	for name, test := range map[string]ruleCase{
		"a header to remove that is none": {
			rule: `{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: ["a b"]}}]}`,
			want: faulty, dropped: `invalid header "a b"`,
		},
		"a path with a line break": {
			rule: `{filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: "/a\nb"}}}]}`,
			want: faulty, dropped: `invalid path "/a\nb"`,
		},
		"a timeout of centuries": {
			rule: `{timeouts: {request: 99999h99999h99999h99999h}, backendRefs: [{name: a, port: 8080}]}`,
			want: faulty, dropped: "invalid duration",
		},
		"regular expressions that are too large together": {
			rule: `{matches: [` + regexps + `], backendRefs: [{name: a, port: 8080}]}`, dropped: "regular expressions of the route are too large",
		},
	} {
		t.Run(name, func(t *testing.T) { test.run(t, httpRoute) })
	}
}

// TestSound compiles objects with values at random, many of them hostile. Nodes accept what
// comes out.
func TestSound(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, services+oneGateway)
		w.in.Gateways = append(w.in.Gateways, gatewayAtRandom(r))
		for range 3 {
			route := decodeAtRandom[gwv1.HTTPRoute](t, r, routeSeed)
			route.Namespace, route.Name = "infra", fmt.Sprintf("r%d", r.IntN(1000))
			w.in.HTTPRoutes = append(w.in.HTTPRoutes, route)
		}
		for range 2 {
			route := decodeAtRandom[gwv1.GRPCRoute](t, r, grpcSeed)
			route.Namespace, route.Name = "infra", fmt.Sprintf("g%d", r.IntN(1000))
			w.in.GRPCRoutes = append(w.in.GRPCRoutes, route)
		}
		policy := decodeAtRandom[gwv1.BackendTLSPolicy](t, r, policySeed)
		policy.Namespace, policy.Name = "infra", "p"
		w.in.Policies = append(w.in.Policies, policy)
		checkState(t, w.serve())
		if t.Failed() {
			t.Fatalf("with the seed %d", seed)
		}
	}
}

// TestAuthoritiesAreBounded has more authorities than nodes get.
func TestAuthoritiesAreBounded(t *testing.T) {
	w := newWorld(t, `
kind: Gateway
metadata: {name: g}
spec:
  gatewayClassName: kedge
  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: big}, {group: "", kind: ConfigMap, name: big}]}}}}
  listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: certificate}]}}]`)
	one := w.configMaps[nameOf("infra", "authority")].Data[authorityKey]
	w.configMaps[nameOf("infra", "big")] = &corev1.ConfigMap{Data: map[string]string{authorityKey: strings.Repeat(one, maxAuthorities/len(one)-1)}}
	result := w.serve()
	checkState(t, result)
	if size := len(result.Fronts[0].Ports[0].Listeners[0].ClientAuthorities); size > maxAuthorities || size == 0 {
		t.Errorf("the nodes get %d bytes of authorities", size)
	}
	if got := result.Gateways[w.in.Gateways[0]].Listeners[0].Conditions; !strings.Contains(fmt.Sprint(got), "leave authorities out") {
		t.Errorf("the conditions are %v", got)
	}
}

// hostile are texts that something could fail to bear.
func hostile(r *rand.Rand) string {
	texts := []string{
		"", "a", "A b", "a\r\nEvil: true", "*.", "*", "-a", "a..b", "/", "/a", "//", "\x00", "\u00e9", "a)|(b", `\Q`, "(a{1000}){1000}", "[a-z]{1000}",
		strings.Repeat("a", 300), strings.Repeat("/a", 5000), "99999h99999h99999h99999h", "1s", "-1s", "http://a b", "x.example", "*.example", ",", "\t", "\x7f",
	}
	return texts[r.IntN(len(texts))]
}

// mutate replaces some of the texts and numbers of a JSON value.
func mutate(r *rand.Rand, value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, field := range value {
			if key != "parentRefs" && key != "type" || r.IntN(10) == 0 {
				value[key] = mutate(r, field)
			}
		}
	case []any:
		for i := range value {
			value[i] = mutate(r, value[i])
		}
	case string:
		if r.IntN(12) == 0 {
			return hostile(r)
		}
	case float64:
		if r.IntN(12) == 0 {
			return []float64{-1, 0, 1, 65535, 1 << 30, 599, 600}[r.IntN(7)]
		}
	}
	return value
}

func decodeAtRandom[T any](t *testing.T, r *rand.Rand, seed string) *T {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(seed), &value); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(mutate(r, value))
	if err != nil {
		t.Fatal(err)
	}
	object := new(T)
	_ = json.Unmarshal(encoded, object) // what does not fit is left out
	return object
}

func gatewayAtRandom(r *rand.Rand) *gwv1.Gateway {
	g := &gwv1.Gateway{}
	g.Namespace, g.Name = "infra", "random"
	g.Spec.GatewayClassName = "kedge"
	for i := range 4 {
		l := gwv1.Listener{Name: gwv1.SectionName(fmt.Sprintf("l%d", i)), Port: gwv1.PortNumber(80 + r.IntN(4)), Protocol: gwv1.HTTPProtocolType}
		if r.IntN(2) == 0 {
			l.Hostname = ptr.To(gwv1.Hostname(hostile(r)))
		}
		g.Spec.Listeners = append(g.Spec.Listeners, l)
	}
	return g
}

const (
	routeSeed = `{"spec": {"parentRefs": [{"name": "g"}, {"name": "random"}], "hostnames": ["a.example", "*.b.example"], "rules": [
{"name": "one",
 "matches": [{"path": {"type": "PathPrefix", "value": "/a"}, "method": "GET", "headers": [{"name": "h", "value": "v"}, {"type": "RegularExpression", "name": "i", "value": "[a-z]+"}],
   "queryParams": [{"name": "q", "value": "v"}]}, {"path": {"type": "RegularExpression", "value": "/x[0-9]+"}}],
 "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "b"}], "add": [{"name": "c", "value": "d"}], "remove": ["e"]}},
  {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "b", "port": 8080}, "fraction": {"numerator": 1, "denominator": 3}}},
  {"type": "CORS", "cors": {"allowOrigins": ["https://a.example"], "allowMethods": ["GET"], "allowHeaders": ["x"], "exposeHeaders": ["y"], "maxAge": 5}},
  {"type": "URLRewrite", "urlRewrite": {"hostname": "r.example", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/r"}}}],
 "timeouts": {"request": "10s", "backendRequest": "5s"}, "retry": {"codes": [500], "attempts": 2, "backoff": "100ms"},
 "sessionPersistence": {"sessionName": "s", "type": "Cookie", "absoluteTimeout": "1h", "cookieConfig": {"lifetimeType": "Permanent"}},
 "backendRefs": [{"name": "a", "port": 8080, "weight": 5, "filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["z"]}}]}]},
{"filters": [{"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "hostname": "t.example", "port": 8443, "statusCode": 301, "path": {"type": "ReplaceFullPath", "replaceFullPath": "/t"}}}]}
]}}`
	grpcSeed = `{"spec": {"parentRefs": [{"name": "g"}, {"name": "random"}], "hostnames": ["g.example"], "rules": [
{"name": "one", "matches": [{"method": {"type": "Exact", "service": "s.S", "method": "M"}, "headers": [{"name": "h", "value": "v"}]},
  {"method": {"type": "RegularExpression", "service": "s[0-9]+", "method": "m+"}}],
 "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "b"}], "remove": ["e"]}}],
 "sessionPersistence": {"sessionName": "s", "type": "Header"}, "backendRefs": [{"name": "a", "port": 9090, "weight": 1}]}]}}`
	policySeed = `{"spec": {"targetRefs": [{"kind": "Service", "name": "a"}], "validation": {"hostname": "a.example", "wellKnownCACertificates": "System",
"subjectAltNames": [{"type": "Hostname", "hostname": "b.example"}, {"type": "URI", "uri": "spiffe://a/b"}]}}}`
)
