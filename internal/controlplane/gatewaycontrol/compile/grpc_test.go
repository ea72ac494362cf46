package compile

import "testing"

func TestGRPCRules(t *testing.T) {
	for name, test := range map[string]ruleCase{
		"nothing": {rule: `{}`, want: `{"targets":[{"fault":503,"weight":1}],"grpc":true}`},
		"matches": {
			rule: `
name: rule
matches:
- method: {service: a.B, method: Echo}
- method: {service: a.B}
- method: {method: Echo.Two}
- method: {type: RegularExpression, service: "a[.]B|c", method: Echo}
- method: {type: RegularExpression, method: Echo}
- method: {}
- headers: [{name: version, value: one}, {name: VERSION, value: two}]
backendRefs: [{name: a, port: 8080}]`,
			want: `{"name":"rule","matches":[{"pathType":"exact","path":"/a.B/Echo"},{"pathType":"prefix","path":"/a.B"},{"pathType":"regexp","path":"/[^/]+/Echo\\.Two"},` +
				`{"pathType":"regexp","path":"/(?:a[.]B|c)/(?:Echo)"},{"pathType":"regexp","path":"/[^/]+/(?:Echo)"},{"pathType":"prefix","path":"/"},` +
				`{"pathType":"prefix","path":"/","headers":[{"type":"exact","name":"version","value":"one"}]}],` +
				`"targets":[{"backend":"infra/a:8080+h2","weight":1}],"grpc":true}`,
		},
		"parts that are an expression only together": {
			rule: `{matches: [{method: {type: RegularExpression, service: "a(", method: ")b"}}]}`, dropped: "is not of RE2",
		},
		"a match of methods that does not exist": {
			rule: `{matches: [{method: {type: Fuzzy, service: a}}]}`, dropped: `of the type "Fuzzy"`,
		},
		"filters": {
			rule: `
filters:
- {type: RequestHeaderModifier, requestHeaderModifier: {add: [{name: a, value: b}]}}
- {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: a, value: b}]}}
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, percent: 50}}
backendRefs: [{name: a, port: 8080, filters: [{type: ExtensionRef, extensionRef: {group: "", kind: Magic, name: m}}]}]`,
			want: `{"filters":[{"requestHeaders":{"add":[{"name":"a","value":"b"}]}},{"responseHeaders":{"set":[{"name":"a","value":"b"}]}},` +
				`{"mirror":{"backend":"infra/b:8080+h2","numerator":50,"denominator":100}}],` +
				`"targets":[{"backend":"infra/a:8080+h2","weight":1,"filters":[{"fault":500}]}],"grpc":true}`,
			unresolved: "InvalidKind",
		},
		"a filter that does not exist": {
			rule: `{filters: [{type: Magic}]}`, want: `{"filters":[{"fault":500}],"grpc":true}`, dropped: "no filter Magic",
		},
		"a session": {
			rule: `{sessionPersistence: {sessionName: s}, backendRefs: [{name: missing, port: 1}]}`,
			want: `{"targets":[{"fault":503,"weight":1}],"session":{"name":"s"},"grpc":true}`, unresolved: "BackendNotFound",
		},
	} {
		t.Run(name, func(t *testing.T) { test.run(t, grpcRoute) })
	}
}
