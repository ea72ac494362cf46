package kubelet

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// nodeAPI answers with 404 for the Node until it is there, and notes what was asked.
type nodeAPI struct {
	there bool
	asked []string
}

func (a *nodeAPI) RoundTrip(request *http.Request) (*http.Response, error) {
	a.asked = append(a.asked, request.Method+" "+request.URL.Path)
	if request.Method == http.MethodPost {
		a.there = true
	}
	if a.there {
		return &http.Response{StatusCode: http.StatusOK}, nil
	}
	return &http.Response{StatusCode: http.StatusNotFound}, nil
}

const csiNode = "/apis/storage.k8s.io/v1/csinodes/a"

// TestNodeFirst wants the CSINode to be asked for as soon as the Node is there, and nothing
// else to wait. The Node may be one that the kubelet makes, or one that others made.
func TestNodeFirst(t *testing.T) {
	for name, shows := range map[string]string{"made": "POST /api/v1/nodes", "found": "GET /api/v1/nodes/a", "changed": "PATCH /api/v1/nodes/a"} {
		synctest.Test(t, func(t *testing.T) {
			behind := &nodeAPI{}
			first := newNodeFirst(t.Context(), "a")
			one, other := first.wrap(behind), first.wrap(behind)
			ask := func(through http.RoundTripper, method, path string) {
				t.Helper()
				request, err := http.NewRequestWithContext(t.Context(), method, "https://api"+path, nil)
				if err == nil {
					_, err = through.RoundTrip(request)
				}
				if err != nil {
					t.Error(err)
				}
			}
			ask(one, "GET", "/api/v1/nodes/a")
			ask(one, "GET", "/api/v1/nodes")
			ask(one, "GET", "/apis/storage.k8s.io/v1/csinodes/b")
			go ask(one, "GET", csiNode)
			synctest.Wait()
			if slices.Contains(behind.asked, "GET "+csiNode) {
				t.Fatalf("%s: the CSINode was asked for before the Node was there", name)
			}
			behind.there = true
			method, path, _ := strings.Cut(shows, " ")
			ask(other, method, path)
			synctest.Wait()
			if last := behind.asked[len(behind.asked)-1]; last != "GET "+csiNode {
				t.Errorf("%s: the last request is %s", name, last)
			}
		})
	}
}

// TestNodeFirstEnds wants a request that waits to end with the kubelet.
func TestNodeFirstEnds(t *testing.T) {
	life, end := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(t.Context(), "GET", "https://api"+csiNode, nil)
	if err != nil {
		t.Fatal(err)
	}
	end()
	if _, err := newNodeFirst(life, "a").wrap(&nodeAPI{}).RoundTrip(request); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
