package compile

import (
	"cmp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/utils/ptr"

	gwv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// defaultMaxAge is how long browsers remember answers about other origins, in seconds.
const defaultMaxAge = 5

// httpFilters translates the filters of a rule of an HTTPRoute.
func (t *translation) httpFilters(filters []gwv1.HTTPRouteFilter, matches []routing.Match) ([]routing.Filter, fault) {
	var found []routing.Filter
	var redirected, rewritten bool
	for i := range filters {
		translated, wrong := t.httpFilter(&filters[i], matches)
		if wrong.is() {
			return nil, wrong
		}
		for j := range translated {
			redirected = redirected || translated[j].Redirect != nil
			rewritten = rewritten || translated[j].Rewrite != nil
		}
		found = append(found, translated...)
	}
	if redirected && rewritten {
		return nil, faultOf(gwv1.RouteReasonIncompatibleFilters, "the filters RequestRedirect and URLRewrite exclude each other")
	}
	return found, fault{}
}

// httpBackendFilters translates the filters for one backend of a rule. Filters that answer by
// themselves are only for the whole rule.
func (t *translation) httpBackendFilters(filters []gwv1.HTTPRouteFilter, matches []routing.Match) ([]routing.Filter, fault) {
	for i := range filters {
		if kind := filters[i].Type; kind == gwv1.HTTPRouteFilterRequestRedirect || kind == gwv1.HTTPRouteFilterCORS {
			return nil, unsupported("the filter %s cannot be for one backend: put it into the filters of the rule", kind)
		}
	}
	return t.httpFilters(filters, matches)
}

// httpFilter translates a filter of an HTTPRoute. A mirror without a backend is none.
func (t *translation) httpFilter(filter *gwv1.HTTPRouteFilter, matches []routing.Match) ([]routing.Filter, fault) {
	switch {
	case filter.Type == gwv1.HTTPRouteFilterRequestHeaderModifier && filter.RequestHeaderModifier != nil:
		changes, wrong := headerChanges(filter.RequestHeaderModifier)
		return []routing.Filter{{RequestHeaders: changes}}, wrong
	case filter.Type == gwv1.HTTPRouteFilterResponseHeaderModifier && filter.ResponseHeaderModifier != nil:
		changes, wrong := headerChanges(filter.ResponseHeaderModifier)
		return []routing.Filter{{ResponseHeaders: changes}}, wrong
	case filter.Type == gwv1.HTTPRouteFilterRequestRedirect && filter.RequestRedirect != nil:
		redirect, wrong := redirectTo(filter.RequestRedirect, matches)
		return []routing.Filter{{Redirect: redirect}}, wrong
	case filter.Type == gwv1.HTTPRouteFilterURLRewrite && filter.URLRewrite != nil:
		path, wrong := newPath(filter.URLRewrite.Path, matches)
		rewrite := &routing.Rewrite{Hostname: string(ptr.Deref(filter.URLRewrite.Hostname, "")), Path: path}
		return []routing.Filter{{Rewrite: rewrite}}, wrong
	case filter.Type == gwv1.HTTPRouteFilterRequestMirror && filter.RequestMirror != nil:
		return t.mirror(filter.RequestMirror)
	case filter.Type == gwv1.HTTPRouteFilterCORS && filter.CORS != nil:
		return []routing.Filter{{CORS: otherOrigins(filter.CORS)}}, fault{}
	case filter.Type == gwv1.HTTPRouteFilterExtensionRef:
		return t.extension(filter.ExtensionRef), fault{}
	}
	return nil, unsupported("kedge has no filter %s", filter.Type)
}

// extension translates a filter that is an object. kedge has no such objects. The filter must
// not be skipped: requests are answered with an error.
func (t *translation) extension(ref *gwv1.LocalObjectReference) []routing.Filter {
	object := "an object without a name"
	if ref != nil {
		object = objectKind(string(ref.Group), string(ref.Kind))
	}
	t.unresolved.add(faultOf(gwv1.RouteReasonInvalidKind, "%s cannot be a filter", object))
	return []routing.Filter{{Fault: 500}}
}

// headerChanges translates changes of headers. Of several for one header, the first one counts.
func headerChanges(from *gwv1.HTTPHeaderFilter) (*routing.Headers, fault) {
	changes := &routing.Headers{Remove: slices.Clone(from.Remove)}
	var wrong fault
	if changes.Set, wrong = headers(from.Set); wrong.is() {
		return nil, wrong
	}
	changes.Add, wrong = headers(from.Add)
	return changes, wrong
}

// headers checks headers. A value with a line break would be another header, or a whole request,
// to a backend that reads it so.
func headers(from []gwv1.HTTPHeader) ([]routing.Header, fault) {
	var found []routing.Header
	for i := range from {
		name, value := string(from[i].Name), from[i].Value
		if !httpguts.ValidHeaderFieldName(name) {
			return nil, unsupported("%q cannot be the name of a header", name)
		}
		if !httpguts.ValidHeaderFieldValue(value) {
			return nil, unsupported("the value of header %s has characters that no header may have", name)
		}
		if !slices.ContainsFunc(found, func(known routing.Header) bool { return strings.EqualFold(known.Name, name) }) {
			found = append(found, routing.Header{Name: name, Value: value})
		}
	}
	return found, fault{}
}

// redirectTo translates a redirect.
func redirectTo(from *gwv1.HTTPRequestRedirectFilter, matches []routing.Match) (*routing.Redirect, fault) {
	redirect := &routing.Redirect{
		Scheme: ptr.Deref(from.Scheme, ""), Hostname: string(ptr.Deref(from.Hostname, "")),
		Port: uint16(ptr.Deref(from.Port, 0)), Code: ptr.Deref(from.StatusCode, 302),
	}
	switch redirect.Scheme {
	case "", "http", "https":
	default:
		return nil, unsupported("a request cannot be redirected to the scheme %q: use http or https", redirect.Scheme)
	}
	switch redirect.Code {
	case 301, 302, 303, 307, 308:
	default:
		return nil, unsupported("a request cannot be redirected with the status %d: use 301, 302, 303, 307 or 308", redirect.Code)
	}
	var wrong fault
	redirect.Path, wrong = newPath(from.Path, matches)
	return redirect, wrong
}

// newPath translates a change of a path. A prefix can only be replaced if the matches of the
// rule say what the prefix is.
func newPath(from *gwv1.HTTPPathModifier, matches []routing.Match) (*routing.Path, fault) {
	if from == nil {
		return nil, fault{}
	}
	switch from.Type {
	case gwv1.FullPathHTTPPathModifier:
		return &routing.Path{Value: ptr.Deref(from.ReplaceFullPath, "")}, fault{}
	case gwv1.PrefixMatchHTTPPathModifier:
		for i := range matches {
			if matches[i].PathType != routing.PathPrefix {
				return nil, unsupported("%s needs matches of the type %s", from.Type, gwv1.PathMatchPathPrefix)
			}
		}
		return &routing.Path{Prefix: true, Value: ptr.Deref(from.ReplacePrefixMatch, "")}, fault{}
	}
	return nil, unsupported("kedge knows no change of paths of the type %q", from.Type)
}

// mirror translates a mirror. One whose backend cannot be used, or that gets no requests, is
// left out: the requests themselves are served.
func (t *translation) mirror(from *gwv1.HTTPRequestMirrorFilter) ([]routing.Filter, fault) {
	mirror := &routing.Mirror{Numerator: 1, Denominator: 1}
	switch {
	case from.Percent != nil:
		mirror.Numerator, mirror.Denominator = int(*from.Percent), 100
	case from.Fraction != nil:
		mirror.Numerator, mirror.Denominator = int(from.Fraction.Numerator), int(ptr.Deref(from.Fraction.Denominator, 100))
	}
	if mirror.Denominator < 1 || mirror.Numerator < 0 || mirror.Numerator > mirror.Denominator {
		return nil, unsupported("%d of %d requests cannot be mirrored", mirror.Numerator, mirror.Denominator)
	}
	if mirror.Backend = t.backend(&from.BackendRef); mirror.Backend == "" || mirror.Numerator == 0 {
		return nil, fault{}
	}
	return []routing.Filter{{Mirror: mirror}}, fault{}
}

// otherOrigins translates what browsers are told about other origins.
func otherOrigins(from *gwv1.HTTPCORSFilter) *routing.CORS {
	return &routing.CORS{
		AllowOrigins: texts(from.AllowOrigins), AllowMethods: texts(from.AllowMethods), AllowHeaders: texts(from.AllowHeaders),
		ExposeHeaders: texts(from.ExposeHeaders), AllowCredentials: ptr.Deref(from.AllowCredentials, false), MaxAge: cmp.Or(int(from.MaxAge), defaultMaxAge),
	}
}

// texts returns texts of another type as such.
func texts[T ~string](from []T) []string {
	var found []string
	for _, one := range from {
		found = append(found, string(one))
	}
	return found
}
