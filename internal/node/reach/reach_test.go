package reach

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestHandler(t *testing.T) {
	var dialed []string
	h := &Handler{
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
		dial: func(_ context.Context, _, address string) (net.Conn, error) {
			dialed = append(dialed, address)
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
		},
	}
	for query, want := range map[string]struct {
		status int
		ends   []End
	}{
		"?namespace=shop&service=web":      {http.StatusOK, []End{Connected, Refused, Silent, Other}},
		"?namespace=shop&service=headless": {http.StatusOK, nil},
		"?namespace=shop&service=none":     {http.StatusUnprocessableEntity, nil},
		"?namespace=shop&service=broken":   {http.StatusServiceUnavailable, nil},
		"?service=web":                     {http.StatusBadRequest, nil},
	} {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path+query, nil))
		var ends []End
		if answer.Code == http.StatusOK {
			var attempts []Attempt
			if err := json.Unmarshal(answer.Body.Bytes(), &attempts); err != nil {
				t.Fatal(err)
			}
			for _, a := range attempts {
				if ends = append(ends, a.End); (a.Error == "") != (a.End == Connected) || !strings.HasPrefix(a.Address, "10.43.0.7:") {
					t.Errorf("%s: %+v", query, a)
				}
			}
		}
		if answer.Code != want.status || !slices.Equal(ends, want.ends) {
			t.Errorf("%s answers %d %v, want %d %v: %s", query, answer.Code, ends, want.status, want.ends, answer.Body)
		}
	}
	if len(dialed) != 4 {
		t.Errorf("tried %v, want the four TCP ports of the Service and nothing else", dialed)
	}
}
