package rotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

func TestLagging(t *testing.T) {
	kubelet := httptest.NewUnstartedServer(http.NotFoundHandler())
	kubelet.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	kubelet.StartTLS()
	defer kubelet.Close()
	own := kubelet.Certificate()
	dial := func(ctx context.Context, node, address string) (net.Conn, error) {
		if node == "down" {
			return nil, errors.New("no tunnel")
		}
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	address := kubelet.Listener.Addr().String()
	nodes := map[string]string{"up": address, "down": address}
	lag := lagging(t.Context(), nodes, []string{address}, own.Equal, dial)
	if want := map[string]string{"node down": "no tunnel"}; !maps.Equal(lag.Why, want) || !lag.Since.Equal(pki.IssuedAt(own)) {
		t.Errorf("got %v, want %v", lag, want)
	}
	lag = lagging(t.Context(), nodes, []string{address}, func(*x509.Certificate) bool { return false }, dial)
	if len(lag.Why) != 3 || !strings.Contains(lag.Why["node up"], "the old certificate authority signed its certificates") || lag.Why["the server at "+address] == "" {
		t.Errorf("got %v, want three: both nodes and the server", lag)
	}
}

func TestKubelets(t *testing.T) {
	node := func(name string, addresses ...corev1.NodeAddress) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Addresses:       addresses,
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		}}
	}
	got := kubelets([]corev1.Node{
		node("one", corev1.NodeAddress{Type: corev1.NodeHostName, Address: "one"},
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}),
		node("two"),
	})
	if want := map[string]string{"one": "192.0.2.1:10250", "two": "two:10250"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestOldPods(t *testing.T) {
	since := time.Now()
	pod := func(name string, phase corev1.PodPhase, token bool, started time.Time) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		p.Status.Phase, p.Status.StartTime = phase, &metav1.Time{Time: started}
		if token {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}},
			}}}}
		}
		return p
	}
	got := oldPods([]corev1.Pod{
		pod("old", corev1.PodRunning, true, since.Add(-time.Hour)),
		pod("new", corev1.PodRunning, true, since.Add(time.Hour)),
		pod("ended", corev1.PodSucceeded, true, since.Add(-time.Hour)),
		pod("without", corev1.PodRunning, false, since.Add(-time.Hour)),
	}, since)
	if want := []string{"default/old"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestRefused: there is no kedge that could tell the other servers.
func TestRefused(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	kedge := localapi.NewClient(filepath.Join(cfg.DataDir, "none"))
	if _, err := Begin(t.Context(), kedge, datadir.Dir(cfg.DataDir), false, time.Now()); !errors.Is(err, localapi.ErrNotRunning) {
		t.Error(err)
	}
	if err := Finish(t.Context(), kedge, cfg, false, fake.NewClientset(), false); err == nil || !strings.Contains(err.Error(), "only a server that has started before") {
		t.Error(err)
	}
}
