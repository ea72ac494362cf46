package reach

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// tried are the addresses to which a handler has connected, and where these connections began.
type tried struct {
	mu  sync.Mutex
	all []string
}

func (d *tried) dial(_ context.Context, from place, _, address string) (net.Conn, error) {
	d.mu.Lock()
	d.all = append(d.all, from.netns+" "+address)
	d.mu.Unlock()
	switch _, port, _ := net.SplitHostPort(address); port {
	case "80":
		here, there := net.Pipe()
		there.Close()
		return here, nil
	case "81":
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	case "82":
		return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	}
	return nil, syscall.ENETUNREACH
}

// handler returns one in whose cluster there are the Services web, headless and broken, and the pod shop/web.
func handler() (*Handler, *tried) {
	dialed := &tried{}
	return &Handler{
		services: func(_ context.Context, namespace, name string) (*corev1.Service, error) {
			switch name {
			case "web":
				return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.7", Ports: []corev1.ServicePort{
					{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 81}, {Port: 82}, {Port: 83}, {Port: 53, Protocol: corev1.ProtocolUDP},
				}}}, nil
			case "headless":
				return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}}, nil
			case "broken":
				return nil, errors.New("the API is away")
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, namespace+"/"+name)
		},
		pods: func(_ context.Context, namespace, name string) (place, error) {
			if namespace+"/"+name != "shop/web" {
				return place{}, errNoNetwork
			}
			return place{netns: "netns-of-web"}, nil
		},
		dial: dialed.dial,
		rules: func(_ context.Context, target netip.AddrPort) Rules {
			if target.Port() != 80 {
				return Rules{State: None}
			}
			return Rules{State: Sends, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.42.0.5:80"), netip.MustParseAddrPort("10.42.1.5:82")}}
		},
	}, dialed
}

func TestHandler(t *testing.T) {
	for query, want := range map[string]struct {
		status int
		ends   string
	}{
		"?namespace=shop&service=web":                       {http.StatusOK, "connected [connected silent] refused [] silent [] other []"},
		"?namespace=shop&service=headless":                  {http.StatusOK, ""},
		"?namespace=shop&service=none":                      {http.StatusUnprocessableEntity, ""},
		"?namespace=shop&service=broken":                    {http.StatusServiceUnavailable, ""},
		"?service=web":                                      {http.StatusBadRequest, ""},
		"?namespace=shop&pod=web":                           {http.StatusBadRequest, ""},
		"?namespace=shop&pod=web&host=10.1.2.3&port=http":   {http.StatusBadRequest, ""},
		"?namespace=shop&pod=web&host=10.1.2.3&port=82":     {http.StatusOK, "silent []"},
		"?namespace=shop&pod=web&host=10.1.2.3&port=0":      {http.StatusOK, ""},
		"?namespace=shop&pod=gone&host=10.1.2.3&port=80":    {http.StatusUnprocessableEntity, ""},
		"?namespace=shop&host=10.1.2.3&port=80":             {http.StatusBadRequest, ""},
		"?namespace=shop&pod=web&service=web&host=x&port=1": {http.StatusBadRequest, ""},
	} {
		h, dialed := handler()
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path+query, nil))
		var got Answer
		if answer.Code == http.StatusOK {
			if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
		}
		if ends := got.ends(); answer.Code != want.status || ends != want.ends {
			t.Errorf("%s answers %d %q, want %d %q: %s", query, answer.Code, ends, want.status, want.ends, answer.Body)
		}
		for _, connection := range dialed.all {
			if strings.Contains(query, "pod=") != strings.HasPrefix(connection, "netns-of-web ") {
				t.Errorf("%s has connected to %s", query, connection)
			}
		}
	}
}

// TestQuestion makes sure that a question arrives as it was asked.
func TestQuestion(t *testing.T) {
	for _, q := range []Question{{Namespace: "shop", Service: "web"}, {Namespace: "shop", Pod: "web", Host: "db", Port: 5432}, {Namespace: "shop", Pod: "web", Host: "db"}} {
		if parsed, err := parse(q.Values()); err != nil || parsed != q {
			t.Errorf("%+v became %+v, %v", q, parsed, err)
		}
	}
}

// TestNodeTriesOnlyServices makes sure that a node itself connects to nothing but the Service and its endpoints.
func TestNodeTriesOnlyServices(t *testing.T) {
	h, dialed := handler()
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, Path+"?namespace=shop&service=web", nil))
	slices.Sort(dialed.all)
	want := []string{" 10.42.0.5:80", " 10.42.1.5:82", " 10.43.0.7:80", " 10.43.0.7:81", " 10.43.0.7:82", " 10.43.0.7:83"}
	if !slices.Equal(dialed.all, want) {
		t.Errorf("tried %q, want %q", dialed.all, want)
	}
}

// ends joins how the attempts of an answer ended.
func (a Answer) ends() string {
	var all []string
	for _, target := range a.Targets {
		var of []string
		for _, e := range target.Endpoints {
			of = append(of, string(e.End))
		}
		all = append(all, string(target.End)+" ["+strings.Join(of, " ")+"]")
	}
	return strings.Join(all, " ")
}
