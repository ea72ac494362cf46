package requests

import (
	"testing"

	"github.com/kedge-dev/kedge/internal/base/routing"
)

// TestGuard asks for paths that a backend may read in another way. A host whose paths have
// different rights refuses them. Others pass them on, byte by byte.
func TestGuard(t *testing.T) {
	password := func(path string, user string) routing.Rule {
		return with(to(path, "b"), func(r *routing.Rule) {
			r.Auth = &routing.BasicAuth{Users: user + ":{SHA}VBPuJHI7uixaa6LQGWx4s+5GKNE=\n"}
		})
	}
	redirect := func(path string, to routing.Redirect) routing.Rule {
		to.Code = 302
		return filtered(path, routing.Filter{Redirect: &to})
	}
	deny := with(to("/admin"), func(r *routing.Rule) { r.Targets = []routing.Target{{Fault: 500, Weight: 1}} })
	hosts := map[string][]routing.Rule{
		"password.example": {password("/admin", "user"), to("/", "b")},
		"users.example":    {password("/admin", "admin"), password("/", "user")},
		"fault.example":    {filtered("/admin", routing.Filter{Fault: 403}), to("/", "b")},
		"deny.example":     {deny, to("/", "b")},
		"https.example":    {redirect("/admin", routing.Redirect{Scheme: "https"}), to("/", "b")},
		"sso.example":      {redirect("/admin", routing.Redirect{Hostname: "sso.example"}), to("/", "b")},
		"target.example": {with(to("/admin", "b"), func(r *routing.Rule) {
			r.Targets[0].Filters = []routing.Filter{{Fault: 403}}
		}), to("/", "b")},
		"a.wild.example": {password("/admin", "user")},
		"*.wild.example": {to("/", "b")},
		// These have nothing to hide.
		"free.example":  {to("/admin", "b"), to("/", "other"), redirect("/old", routing.Redirect{Path: &routing.Path{Prefix: true, Value: "/new"}})},
		"whole.example": {password("/", "user"), password("/admin", "user")},
	}
	var routes []*routing.Route
	for host, rules := range hosts {
		routes = append(routes, &routing.Route{Name: "HTTPRoute/a/" + host, Hostnames: []string{host}, Rules: rules})
	}
	w := newWorld(t, routes...)
	w.backend("b", nil)
	w.backend("other", nil)
	ambiguousPaths := []string{
		"/%2Fadmin/", "/%2fadmin", "/x%2F%2e%2e/admin", "/a%2Fb", "/%5Cadmin", "/a%5cb", "/%252Fadmin", "/%25252fadmin", "/%25%32%46admin", "/%252%46admin",
		"/%2e/admin", "/a%2Ehtml", "/%252e/admin", "/%255cadmin", "/a%2500", "/%2525252525252525252525",
	}
	guarded := []string{"password.example", "users.example", "fault.example", "deny.example", "https.example", "sso.example", "target.example", "a.wild.example"}
	const credentials = "Authorization: Basic dXNlcjpteVBhc3N3b3Jk" // user:myPassword
	for _, host := range guarded {
		for _, path := range append(ambiguousPaths, "/admin;x", "/admin;a=b/c", "/;/admin", "/%3B/admin", "/ADMIN/..;/admin") {
			if got := w.ask("GET", path, "Host: "+host, credentials); got.StatusCode != 400 {
				t.Errorf("%s%s: got %d", host, path, got.StatusCode)
			}
		}
		// What is not ambiguous is served.
		for _, path := range []string{"/", "/a/../b", "/a%20b/%41", "/100%25", "/a;v=1/b", "/a%3Bb", "/.well-known/x"} {
			if got := w.ask("GET", path, "Host: "+host, credentials); got.StatusCode != 200 || got.echo.URI != path {
				t.Errorf("%s%s: got %d %s", host, path, got.StatusCode, got.echo.URI)
			}
		}
		if got := w.ask("GET", "/admin/x", "Host: "+host); got.StatusCode == 200 || got.StatusCode == 400 {
			t.Errorf("%s/admin/x: got %d", host, got.StatusCode)
		}
	}
	for _, host := range []string{"free.example", "whole.example", "b.wild.example"} {
		for _, path := range append(ambiguousPaths, "/admin;x", "/%3B/admin") {
			want := 200
			if path == "/x%2F%2e%2e/admin" {
				want = 400 // refused everywhere
			}
			if got := w.ask("GET", path, "Host: "+host, credentials); got.StatusCode != want || want == 200 && got.echo.URI != path {
				t.Errorf("%s%s: got %d %s", host, path, got.StatusCode, got.echo.URI)
			}
		}
	}
	if got := w.ask("GET", "/old/lemon%2Fpie?a=b;c", "Host: free.example"); got.Header.Get("Location") != "http://free.example/new/lemon%2Fpie?a=b;c" {
		t.Errorf("the redirect leads to %q", got.Header.Get("Location"))
	}
}

// TestRightsOfHost has a host with many lists of users. Its rules remember two, which is enough to
// know that rights differ, whatever comes after.
func TestRightsOfHost(t *testing.T) {
	var r rules
	for _, users := range []string{"a", "a", "b", "c", "a"} {
		r.note(rights{password: true, users: users})
	}
	if len(r.rights) != 2 || r.rights[0] == r.rights[1] {
		t.Errorf("the rules remember %v", r.rights)
	}
}
