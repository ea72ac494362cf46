package nodescope

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestScope(t *testing.T) {
	claim := func(name string, labels map[string]string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels}}
	}
	client := fake.NewSimpleDynamicClient(scheme.Scheme,
		claim("own", map[string]string{"node": "a"}), claim("others", map[string]string{"node": "b"}),
		claim("everybodys", map[string]string{"node": ""}), claim("nobodys", nil),
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "volume", Labels: map[string]string{"node": "b"}}})
	handler := &scope{
		scopes: Scopes{{Resource: "persistentvolumeclaims"}: "node", {Resource: "persistentvolumes"}: "node"},
		client: client, codecs: scheme.Codecs,
		next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.URL.Query().Get("labelSelector"))
		}),
	}
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	service := &user.DefaultInfo{Name: "system:kedge:storage", Groups: []string{"kedge:registration:1", "kedge:node:a", user.AllAuthenticated}}
	const claims = "/api/v1/namespaces/default/persistentvolumeclaims"
	for _, test := range []struct {
		who          user.Info
		method, path string
		status       int
	}{
		{who: service, method: "GET", path: claims + "/own", status: 200},
		{who: service, method: "GET", path: claims + "/everybodys", status: 200},
		{who: service, method: "GET", path: claims + "/missing", status: 200},
		{who: service, method: "GET", path: claims + "/others", status: 403},
		{who: service, method: "GET", path: claims + "/nobodys", status: 403},
		{who: service, method: "PATCH", path: claims + "/others", status: 403},
		{who: service, method: "PATCH", path: claims + "/others/status", status: 403},
		{who: service, method: "PUT", path: claims + "/others", status: 403},
		{who: service, method: "DELETE", path: claims + "/others", status: 403},
		{who: service, method: "GET", path: "/api/v1/persistentvolumes/volume", status: 403},
		{who: service, method: "POST", path: claims, status: 200},
		{who: service, method: "GET", path: "/api/v1/namespaces/default/secrets/x", status: 200},
		{who: service, method: "GET", path: "/healthz", status: 200},
	} {
		status, _ := ask(t, handler, resolver, test.who, test.method, test.path)
		if status != test.status {
			t.Errorf("%s %s: got %d, want %d", test.method, test.path, status, test.status)
		}
	}

	own, others, everybodys := map[string]string{"node": "a"}, map[string]string{"node": "b"}, map[string]string{"node": ""}
	for _, path := range []string{
		"/api/v1/persistentvolumeclaims", claims, claims + "?watch=true", claims + "?fieldSelector=metadata.name%3Dothers",
		"/api/v1/watch/persistentvolumeclaims", "/api/v1/watch/namespaces/default/persistentvolumeclaims/others",
		claims + "?labelSelector=node%3Db", claims + "?labelSelector=x&labelSelector=node", claims + "?labelSelector=node+in+(b,c),!x",
	} {
		for _, method := range []string{"GET", "DELETE"} {
			if method == "DELETE" && path != claims {
				continue
			}
			status, text := ask(t, handler, resolver, service, method, path)
			selector, err := labels.Parse(text)
			if status != 200 || err != nil || text == "" {
				t.Fatalf("%s: %d, %q, %v", path, status, text, err)
			}
			if selector.Matches(labels.Set(others)) || selector.Matches(labels.Set{}) {
				t.Errorf("%s %s asks for another node's objects: %s", method, path, text)
			}
			if parsed, err := url.Parse(path); err == nil && !parsed.Query().Has("labelSelector") && !(selector.Matches(labels.Set(own)) && selector.Matches(labels.Set(everybodys))) {
				t.Errorf("%s does not ask for the node's own: %s", path, text)
			}
		}
	}
	if status, _ := ask(t, handler, resolver, service, "GET", claims+"?labelSelector=node+in+(b"); status != 400 {
		t.Errorf("a selector that is none is answered with %d", status)
	}

	t.Log("others are not narrowed")
	for _, who := range []user.Info{
		&user.DefaultInfo{Name: "system:admin", Groups: []string{"kedge:cluster-admins"}},
		&user.DefaultInfo{Name: "system:node:a", Groups: []string{"system:nodes", "kedge:node:a"}}, // limited by the Node authorizer instead
	} {
		if status, _ := ask(t, handler, resolver, who, "GET", claims+"/others"); status != 200 {
			t.Errorf("%s: got status %d, want 200", who.GetName(), status)
		}
		if _, text := ask(t, handler, resolver, who, "GET", claims); text != "" {
			t.Errorf("%s: got selector %q, want none", who.GetName(), text)
		}
	}
	if _, err := narrow(httptest.NewRequest("GET", claims+"?labelSelector=%zz", nil), "node", "a"); err == nil {
		t.Error("a query that is none is taken")
	}
}

// ask returns the status and the body of an answer.
func ask(t *testing.T, handler http.Handler, resolver request.RequestInfoResolver, who user.Info, method, path string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	info, err := resolver.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r.WithContext(request.WithRequestInfo(request.WithUser(r.Context(), who), info)))
	return recorder.Code, recorder.Body.String()
}
