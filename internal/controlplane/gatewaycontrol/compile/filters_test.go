package compile

import "testing"

const faulty = `{"filters":[{"fault":500}]}`

func TestFilters(t *testing.T) {
	for name, test := range map[string]ruleCase{
		"headers": {
			rule: `
filters:
- type: RequestHeaderModifier
  requestHeaderModifier:
    set: [{name: X-Set, value: one}, {name: x-set, value: two}]
    add: [{name: X-Add, value: "a, b"}]
    remove: [X-Remove]
- type: ResponseHeaderModifier
  responseHeaderModifier: {remove: [Server]}
backendRefs: [{name: a, port: 8080}]`,
			want: `{"filters":[{"requestHeaders":{"set":[{"name":"X-Set","value":"one"}],"add":[{"name":"X-Add","value":"a, b"}],"remove":["X-Remove"]}},` +
				`{"responseHeaders":{"remove":["Server"]}}],"targets":[{"backend":"infra/a:8080","weight":1}]}`,
		},
		"a header with a line break": {
			rule: `{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: "b\r\nEvil: true"}]}}]}`,
			want: faulty, dropped: "the value of header a has characters",
		},
		"a header whose name is none": {
			rule: `{filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {add: [{name: "a b", value: c}]}}]}`,
			want: faulty, dropped: `"a b" cannot be the name of a header`,
		},
		"headers for one backend": {
			rule: `{backendRefs: [{name: a, port: 8080, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x, value: z}]}}]}]}`,
			want: `{"targets":[{"backend":"infra/a:8080","weight":1,"filters":[{"requestHeaders":{"set":[{"name":"x","value":"z"}]}}]}]}`,
		},
		"a redirect": {
			rule: `{filters: [{type: RequestRedirect, requestRedirect: {scheme: https, hostname: example.org, port: 8443, statusCode: 308, path: {type: ReplaceFullPath, replaceFullPath: /full}}}]}`,
			want: `{"filters":[{"redirect":{"scheme":"https","hostname":"example.org","path":{"value":"/full"},"port":8443,"code":308}}]}`,
		},
		"a redirect with nothing in it": {
			rule: `{filters: [{type: RequestRedirect, requestRedirect: {}}]}`,
			want: `{"filters":[{"redirect":{"code":302}}]}`,
		},
		"a redirect to a file": {
			rule: `{filters: [{type: RequestRedirect, requestRedirect: {scheme: file}}]}`, want: faulty, dropped: `the scheme "file"`,
		},
		"a redirect that is none": {
			rule: `{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200}}]}`, want: faulty, dropped: "the status 200",
		},
		"a rewrite": {
			rule: `{matches: [{path: {value: /a}}], filters: [{type: URLRewrite, urlRewrite: {hostname: one.example.org, path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}`,
			want: `{"matches":[{"pathType":"prefix","path":"/a"}],"filters":[{"rewrite":{"hostname":"one.example.org","path":{"prefix":true,"value":"/b"}}}],"targets":[{"fault":500,"weight":1}]}`,
		},
		"a rewrite of a prefix that is none": {
			rule: `{matches: [{path: {type: Exact, value: /a}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /b}}}]}`,
			want: `{"matches":[{"pathType":"exact","path":"/a"}],"filters":[{"fault":500}]}`, dropped: "needs matches of the type PathPrefix",
		},
		"a rewrite and a redirect": {
			rule: `{filters: [{type: URLRewrite, urlRewrite: {hostname: a}}, {type: RequestRedirect, requestRedirect: {}}]}`,
			want: faulty, dropped: "exclude each other",
		},
		"mirrors": {
			rule: `
filters:
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}}}
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, percent: 20}}
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, fraction: {numerator: 25, denominator: 50}}}
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, fraction: {numerator: 3}}}
- {type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, percent: 0}}
- {type: RequestMirror, requestMirror: {backendRef: {name: missing, port: 8080}}}
backendRefs: [{name: a, port: 8080}]`,
			want: `{"filters":[{"mirror":{"backend":"infra/b:8080","numerator":1,"denominator":1}},{"mirror":{"backend":"infra/b:8080","numerator":20,"denominator":100}},` +
				`{"mirror":{"backend":"infra/b:8080","numerator":25,"denominator":50}},{"mirror":{"backend":"infra/b:8080","numerator":3,"denominator":100}}],` +
				`"targets":[{"backend":"infra/a:8080","weight":1}]}`,
			unresolved: "BackendNotFound: there is no Service infra/missing",
		},
		"a mirror of more than everything": {
			rule: `{filters: [{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 8080}, fraction: {numerator: 3, denominator: 2}}}]}`,
			want: faulty, dropped: "3 of 2 requests cannot be mirrored",
		},
		"CORS": {
			rule: `{filters: [{type: CORS, cors: {allowOrigins: ["https://*.bar.com"], allowMethods: ["*"], allowHeaders: [x-1], exposeHeaders: [x-2], allowCredentials: true, maxAge: 3600}}]}`,
			want: `{"filters":[{"cors":{"allowOrigins":["https://*.bar.com"],"allowMethods":["*"],"allowHeaders":["x-1"],"exposeHeaders":["x-2"],"allowCredentials":true,"maxAge":3600}}],"targets":[{"fault":500,"weight":1}]}`,
		},
		"CORS with nothing in it": {
			rule: `{filters: [{type: CORS, cors: {}}]}`, want: `{"filters":[{"cors":{"maxAge":5}}],"targets":[{"fault":500,"weight":1}]}`,
		},
		"CORS for one backend": {
			rule: `{backendRefs: [{name: a, port: 8080, filters: [{type: CORS, cors: {}}]}]}`, want: faulty, dropped: "the filter CORS cannot be for one backend",
		},
		"an extension": {
			rule: `{filters: [{type: ExtensionRef, extensionRef: {group: example.com, kind: Magic, name: m}}], backendRefs: [{name: a, port: 8080}]}`,
			want: `{"filters":[{"fault":500}],"targets":[{"backend":"infra/a:8080","weight":1}]}`, unresolved: "InvalidKind: a Magic of example.com cannot be a filter",
		},
		"an extension for one backend": {
			rule: `{backendRefs: [{name: a, port: 8080, filters: [{type: ExtensionRef, extensionRef: {group: example.com, kind: Magic, name: m}}]}]}`,
			want: `{"targets":[{"backend":"infra/a:8080","weight":1,"filters":[{"fault":500}]}]}`, unresolved: "InvalidKind",
		},
		"authentication elsewhere": {
			rule: `{matches: [{path: {value: /secret}}], filters: [{type: ExternalAuth, externalAuth: {protocol: HTTP, backendRef: {name: a, port: 8080}}}], backendRefs: [{name: a, port: 8080}]}`,
			want: `{"matches":[{"pathType":"prefix","path":"/secret"}],"filters":[{"fault":500}]}`, dropped: "kedge has no filter ExternalAuth",
		},
		"a filter without its settings": {
			rule: `{filters: [{type: URLRewrite}]}`, want: faulty, dropped: "kedge has no filter URLRewrite",
		},
	} {
		t.Run(name, func(t *testing.T) { test.run(t, httpRoute) })
	}
}
