package lastresort

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/inspect/why"
	"github.com/kedge-dev/kedge/manifests"
)

// exists tells whether an example of package why is about a rule.
func exists(t *testing.T, rule string) bool {
	t.Helper()
	files, err := filepath.Glob("../why/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(content), "# rule: "+rule+"\n")
	})
}

// wire is an API that answers nothing, and notes what it was asked.
type wire struct{ asked []string }

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.asked = append(w.asked, r.Method+" "+r.URL.Path)
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// TestFence sends requests that a user of the namespace shop may make, and others.
func TestFence(t *testing.T) {
	for _, test := range []struct {
		method, path string
		passes       bool
	}{
		{"GET", "/api/v1/namespaces/shop/services", true},
		{"GET", "/api/v1/namespaces/shop/services/web", true},
		{"GET", "/api/v1/namespaces/shop/pods", true},
		{"GET", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", true},
		{"GET", "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways/front", true},
		{"GET", "/apis/networking.k8s.io/v1/ingressclasses/nginx", true},
		{"GET", "/apis/networking.k8s.io/v1/ingressclasses", false},
		{"GET", "/apis/gateway.networking.k8s.io/v1/gatewayclasses", false},
		{"GET", "/apis/gateway.networking.k8s.io/v1/namespaces/other/gateways/front", false},
		{"GET", "/api/v1/namespaces/other/services", false},
		{"GET", "/api/v1/namespaces/shop/../other/services", false},
		{"GET", "/api/v1/namespaces/shop/secrets/web", false},
		{"GET", "/api/v1/namespaces/shop/events", false},
		{"GET", "/api/v1/namespaces/shop/pods/web/log", false},
		{"GET", "/api/v1/namespaces/shop", false},
		{"GET", "/api/v1/watch/namespaces/shop/pods", false},
		{"GET", "/api/v1/namespaces/shop/pods?watch=true", false},
		{"GET", "/api/v1/pods", false},
		{"GET", "/api/v1/services", false},
		{"GET", "/api/v1/nodes", false},
		{"GET", "/api/v1/nodes/a", false},
		{"GET", "/api/v1/persistentvolumes/a", false},
		{"GET", "/apis/storage.k8s.io/v1/storageclasses/a", false},
		{"GET", "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods", false},
		{"GET", "/version", false},
		{"POST", "/api/v1/namespaces/shop/pods", false},
		{"DELETE", "/api/v1/namespaces/shop/pods/web", false},
	} {
		for _, ctx := range []context.Context{within(t.Context(), "shop"), t.Context()} {
			request, err := http.NewRequestWithContext(ctx, test.method, "http://api"+test.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			api := &wire{}
			answer, err := fence{api}.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			// A class is in no namespace. All else needs one.
			passes := test.passes && (ctx != t.Context() || strings.Contains(test.path, "classes/"))
			if (answer.StatusCode != http.StatusForbidden) != passes || (len(api.asked) == 1) != passes {
				t.Errorf("%s %s is answered %d, and reached the API: %v", test.method, test.path, answer.StatusCode, api.asked)
			}
		}
	}
}

// TestClients asks with the clients of the rules. They take the answer of the fence for that of an API.
func TestClients(t *testing.T) {
	api := &wire{}
	clients, err := fencedClients(&rest.Config{Host: "http://api", Transport: api})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t.Context(), "shop")
	if _, err := clients.Kubernetes.CoreV1().Secrets("shop").Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Secret: %v", err)
	}
	httpRoutes := schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
	if _, err := clients.Dynamic.Resource(httpRoutes).Namespace("other").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("routes of another namespace: %v", err)
	}
	if len(api.asked) > 0 {
		t.Errorf("the API was asked %v", api.asked)
	}
	// Each kind of the table can be read: nothing is forbidden that is needed to find objects.
	for kind := range silent {
		if _, err := why.Causes(ctx, clients, "shop", []string{kind}); err != nil || len(api.asked) != 1 {
			t.Errorf("%s: asked %v, %v", kind, api.asked, err)
		}
		api.asked = nil
	}
}

// TestRights compares the role of this package's user with what the fence lets pass.
func TestRights(t *testing.T) {
	text, err := manifests.Files.ReadFile("rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	may := map[string]bool{}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text))
	for {
		var role rbacv1.ClusterRole
		if err := documents.Decode(&role); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" || role.Name != User {
			continue
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					may[verb+" "+resource+"."+rule.APIGroups[0]] = true
				}
			}
		}
	}
	want := map[string]bool{"list namespaces.": true, "list events.": true, "create events.": true, "patch events.": true}
	for _, resource := range inNamespace {
		want["get "+resource.Resource+"."+resource.Group], want["list "+resource.Resource+"."+resource.Group] = true, true
	}
	for _, resource := range byName {
		want["get "+resource.Resource+"."+resource.Group] = true
	}
	for right := range want {
		if !may[right] {
			t.Errorf("the role lacks: %s", right)
		}
	}
	for right := range may {
		if !want[right] {
			t.Errorf("the role has, and does not need: %s", right)
		}
	}
}
