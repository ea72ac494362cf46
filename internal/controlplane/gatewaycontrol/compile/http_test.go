package compile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// ruleCase is a rule of a route, and what nodes get.
type ruleCase struct {
	rule string
	// want is the JSON of the rule that nodes get. If it is empty, nodes get none.
	want string
	// dropped and unresolved are parts of the messages of PartiallyInvalid and ResolvedRefs.
	dropped, unresolved string
}

// run compiles a route of a kind with the rule, and with one more that is sound.
func (test ruleCase) run(t *testing.T, kind gwv1.Kind) {
	t.Helper()
	result := newWorld(t, services+oneGateway+`
kind: `+string(kind)+`
metadata: {name: r}
spec:
  parentRefs: [{name: g}]
  rules:
  - `+strings.ReplaceAll(strings.TrimSpace(test.rule), "\n", "\n    ")+`
  - {name: sound}`).compile()
	rules := result.State.Routes[string(kind)+"/infra/r"].Rules
	got := ""
	if len(rules) == 2 {
		text, err := json.Marshal(rules[0])
		if err != nil {
			t.Fatal(err)
		}
		got = string(text)
	}
	if got != test.want {
		t.Errorf("the rule is\n%s, want\n%s", got, test.want)
	}
	dropped, unresolved := "", ""
	for _, parent := range append(statusOfHTTP(result), statusOfGRPC(result)...) {
		for _, condition := range parent.Conditions {
			switch {
			case condition.Type == string(gwv1.RouteConditionPartiallyInvalid):
				dropped = condition.Message
				if !strings.HasPrefix(dropped, "Dropped Rule") {
					t.Errorf("the message of PartiallyInvalid is %q", dropped)
				}
			case condition.Type == string(gwv1.RouteConditionResolvedRefs) && condition.Status == "False":
				unresolved = condition.Reason + ": " + condition.Message
			case condition.Type == string(gwv1.RouteConditionAccepted) && condition.Status != "True":
				t.Errorf("the route is not accepted: %s", condition.Message)
			}
		}
	}
	if (dropped != "") != (test.dropped != "") || !strings.Contains(dropped, test.dropped) {
		t.Errorf("PartiallyInvalid says %q, want %q", dropped, test.dropped)
	}
	if (unresolved != "") != (test.unresolved != "") || !strings.Contains(unresolved, test.unresolved) {
		t.Errorf("ResolvedRefs says %q, want %q", unresolved, test.unresolved)
	}
}

func statusOfHTTP(result *Result) []gwv1.RouteParentStatus {
	for _, status := range result.HTTPRoutes {
		return status.Parents
	}
	return nil
}

func statusOfGRPC(result *Result) []gwv1.RouteParentStatus {
	for _, status := range result.GRPCRoutes {
		return status.Parents
	}
	return nil
}

func TestHTTPRules(t *testing.T) {
	for name, test := range map[string]ruleCase{
		"nothing": {rule: `{}`, want: `{"targets":[{"fault":500,"weight":1}]}`},
		"no backends, but a name": {
			rule: `{name: forward, backendRefs: []}`,
			want: `{"name":"forward","targets":[{"fault":500,"weight":1}]}`,
		},
		"matches": {
			rule: `
matches:
- path: {type: Exact, value: /one}
- path: {value: /two}
  method: GET
- headers: [{name: version, value: one}, {name: Version, value: two}, {name: color, type: RegularExpression, value: "orange|blue"}]
- queryParams: [{name: animal, value: whale}, {name: Animal, value: dog}, {name: animal, value: cat}]
- path: {type: RegularExpression, value: "/v[12]"}
backendRefs: [{name: a, port: 8080}]`,
			want: `{"matches":[{"pathType":"exact","path":"/one"},{"pathType":"prefix","path":"/two","method":"GET"},` +
				`{"pathType":"prefix","path":"/","headers":[{"type":"exact","name":"version","value":"one"},{"type":"regexp","name":"color","value":"orange|blue"}]},` +
				`{"pathType":"prefix","path":"/","query":[{"type":"exact","name":"animal","value":"whale"},{"type":"exact","name":"Animal","value":"dog"}]},` +
				`{"pathType":"regexp","path":"/v[12]"}],` +
				`"targets":[{"backend":"infra/a:8080","weight":1}]}`,
		},
		"weights": {
			rule:       `{backendRefs: [{name: a, port: 8080, weight: 9}, {name: b, port: 8080, weight: 0}, {name: missing, port: 8080, weight: 2}]}`,
			want:       `{"targets":[{"backend":"infra/a:8080","weight":9},{"backend":"infra/b:8080","weight":0},{"fault":500,"weight":2}]}`,
			unresolved: "BackendNotFound: there is no Service infra/missing",
		},
		"no weight at all": {
			rule: `{backendRefs: [{name: a, port: 8080, weight: 0}]}`,
			want: `{"targets":[{"fault":500,"weight":1}]}`,
		},
		"timeouts": {
			rule: `{timeouts: {request: 1m30s, backendRequest: 500ms}}`,
			want: `{"targets":[{"fault":500,"weight":1}],"timeout":90000000000,"backendTimeout":500000000}`,
		},
		"no timeout": {rule: `{timeouts: {request: 0s}}`, want: `{"targets":[{"fault":500,"weight":1}]}`},
		"a timeout that is none": {
			rule: `{matches: [{path: {value: /a}}], timeouts: {request: 1.5s}}`,
			want: `{"matches":[{"pathType":"prefix","path":"/a"}],"filters":[{"fault":500}]}`, dropped: `rules[0]: "1.5s" is not a duration`,
		},
		"retry": {
			rule: `{retry: {codes: [500, 503], attempts: 3, backoff: 100ms}}`,
			want: `{"targets":[{"fault":500,"weight":1}],"retry":{"codes":[500,503],"attempts":3,"backoff":100000000}}`,
		},
		"retry without numbers": {
			rule: `{retry: {}}`,
			want: `{"targets":[{"fault":500,"weight":1}],"retry":{"attempts":1}}`,
		},
		"retry for ever": {
			rule: `{retry: {attempts: 1000000}}`,
			want: `{"filters":[{"fault":500}]}`, dropped: "set retry.attempts to a number from 1 to 10",
		},
		"a session": {
			rule: `{sessionPersistence: {sessionName: s, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}}`,
			want: `{"targets":[{"fault":500,"weight":1}],"session":{"name":"s","absolute":3600000000000,"permanent":true}}`,
		},
		"a session without a name": {
			rule: `{sessionPersistence: {type: Header}}`,
			want: `{"targets":[{"fault":500,"weight":1}],"session":{"name":"kedge-session-8465bf16","header":true}}`,
		},
		"a session with a name that splits headers": {
			rule: `{sessionPersistence: {sessionName: "a; b"}}`,
			want: `{"filters":[{"fault":500}]}`, dropped: "cannot be the name of a cookie",
		},
		"a permanent session without an end": {
			rule: `{sessionPersistence: {cookieConfig: {lifetimeType: Permanent}}}`,
			want: `{"filters":[{"fault":500}]}`, dropped: "needs sessionPersistence.absoluteTimeout",
		},
		"a method that does not exist": {
			rule: `{matches: [{method: BREW}]}`, dropped: `no method "BREW"`,
		},
		"a path without a slash": {
			rule: `{name: rule, matches: [{path: {value: a}}]}`, dropped: "rules[0] (rule): the path",
		},
		"a regular expression that is too large": {
			rule: `{matches: [{headers: [{name: a, type: RegularExpression, value: ".{900}.{900}.{900}.{900}.{900}"}]}]}`, dropped: "too large",
		},
		"a match of headers that does not exist": {
			rule: `{matches: [{headers: [{name: a, type: Fuzzy, value: a}]}]}`, dropped: `of the type "Fuzzy"`,
		},
	} {
		t.Run(name, func(t *testing.T) { test.run(t, httpRoute) })
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[gwv1.Duration]time.Duration{
		"0s": 0, "1h": time.Hour, "10ms": 10 * time.Millisecond, "1h1m1s1ms": time.Hour + time.Minute + time.Second + time.Millisecond,
		"99999h99999h": 2 * 99999 * time.Hour, "1m1m": 2 * time.Minute,
		"": -1, "1": -1, "s": -1, "1.5h": -1, "-1s": -1, "+1s": -1, "1us": -1, "1ns": -1, "100000s": -1, "1s1s1s1s1s": -1, "1d": -1, "1s ": -1,
	} {
		got, wrong := duration(&text)
		if wrong.is() {
			got = -1
		}
		if got != want {
			t.Errorf("duration(%q) = %v, want %v", text, got, want)
		}
	}
}
