// Package controlplane tests the packages below it together: the API server, the
// controllers and the scheduler in one process.
package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/kubeinit"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/controlplane/apiserver"
	"github.com/kedge-dev/kedge/internal/controlplane/controllers"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/lean"
	"github.com/kedge-dev/kedge/internal/controlplane/resourcemetrics"
	"github.com/kedge-dev/kedge/internal/controlplane/scheduler"
	"github.com/kedge-dev/kedge/internal/datastore/sqlite"
)

// patience is how long a test waits for something that happens soon.
const patience = 2 * time.Minute

// TestControlPlane runs a whole control plane without nodes, as the server
// package wires it. Kubernetes keeps much state per process, so this test binary
// can have only one such test.
func TestControlPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	if _, _, err := kubeinit.Setup(config.Log{}); err != nil {
		t.Fatal(err)
	}
	plane := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin := clientset(t, plane.api.ClientConfig("admin", "system:masters"))

	t.Run("serves under its address", func(t *testing.T) { plane.testPort(t) })
	t.Run("serves health of controllers and scheduler", func(t *testing.T) { plane.testHealth(t) })
	t.Run("knows users by certificate", func(t *testing.T) { plane.testCertificate(ctx, t) })
	t.Run("refuses the unprivileged", func(t *testing.T) {
		nobody := clientset(t, plane.api.ClientConfig("nobody"))
		_, err := nobody.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("list Secrets without rights: got %v, want it forbidden", err)
		}
	})
	t.Run("makes pods of a Deployment", func(t *testing.T) { testDeployment(ctx, t, admin) })
	t.Run("prepares a namespace", func(t *testing.T) {
		_, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "service account", func() (bool, error) {
			_, err := admin.CoreV1().ServiceAccounts("team").Get(ctx, "default", metav1.GetOptions{})
			return err == nil, err
		})
		eventually(ctx, t, "CA for pods", func() (bool, error) {
			ca, err := admin.CoreV1().ConfigMaps("team").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return err == nil && ca.Data["ca.crt"] != "", err
		})
		err = admin.CoreV1().Namespaces().Delete(ctx, "team", metav1.DeleteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "end of the namespace", func() (bool, error) {
			_, err := admin.CoreV1().Namespaces().Get(ctx, "team", metav1.GetOptions{})
			return apierrors.IsNotFound(err), err
		})
	})
	t.Run("describes its types", func(t *testing.T) { testOpenAPI(ctx, t, plane, admin) })
	t.Run("announces itself", func(t *testing.T) {
		eventually(ctx, t, "endpoint of the kubernetes Service", func() (bool, error) {
			slice, err := admin.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
			return err == nil && len(slice.Endpoints) == 1 && slice.Endpoints[0].Addresses[0] == "10.9.8.7" &&
				*slice.Ports[0].Port == int32(plane.port), err
		})
	})
	t.Run("runs controllers again", func(t *testing.T) { plane.testAgain(ctx, t) })
	t.Run("elects", func(t *testing.T) { plane.testElection(t, admin) })
	t.Run("serves metrics", func(t *testing.T) { plane.testMetrics(ctx, t, admin) })
	plane.stop()
}

// testAgain runs further controllers one after the other in the same process,
// on the same informers.
func (p *plane) testAgain(ctx context.Context, t *testing.T) {
	for range 2 {
		manager, err := controllers.New(controllers.Config{API: p.api, Cluster: config.Default().Cluster, Files: p.pki.Files,
			Args: []string{"secure-port=0", "flex-volume-plugin-dir=" + t.TempDir()}})
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(ctx)
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- manager.Run(running, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-ended:
			t.Errorf("the components ended before they were ready: %v", err)
			ended <- nil
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the components ended with %v", err)
		}
	}
}

// plane is a running control plane.
type plane struct {
	api             *apiserver.Server
	pki             *pki.Server
	port            int
	controllersPort int
	schedulerPort   int
	kubelet         fakeKubelet
	stop            func()
}

// loops are the controllers and the scheduler of a server.
type loops struct {
	election    *election.Election
	controllers *controllers.Manager
	scheduler   *scheduler.Scheduler
}

// newLoops makes the loops that run when the server of that name is elected.
func (p *plane) newLoops(t *testing.T, server string, controllersPort, schedulerPort int) loops {
	elected := election.New(election.Config{Client: p.api.ClientConfig("election", "system:masters"), Identity: server})
	manager, err := controllers.New(controllers.Config{API: p.api, Cluster: config.Default().Cluster, Files: p.pki.Files, Election: elected,
		Address: netip.MustParseAddr("127.0.0.1"), Args: []string{fmt.Sprintf("secure-port=%d", controllersPort), "flex-volume-plugin-dir=" + t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := scheduler.New(scheduler.Config{API: p.api, CertFile: p.pki.ServingCertFile, KeyFile: p.pki.ServingKeyFile, Election: elected,
		Address: netip.MustParseAddr("127.0.0.1"), Args: []string{fmt.Sprintf("secure-port=%d", schedulerPort)}})
	if err != nil {
		t.Fatal(err)
	}
	return loops{elected, manager, pods}
}

// addTo adds them to group as the server package does.
func (l loops) addTo(group *component.Group, after ...component.Component) {
	group.Add(l.election, after...)
	group.Add(l.controllers, append(after, l.election)...)
	group.Add(l.scheduler, append(after, l.election)...)
}

func start(t *testing.T) *plane {
	began := time.Now()
	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.ServerTLS(), dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cluster := config.Default().Cluster
	clock := pki.NewClock(dir.ClockFile())
	certificates, err := pki.EnsureServer(pki.ServerOptions{
		Dir: dir, NodeName: "node", NodeIPs: []netip.Addr{netip.MustParseAddr("10.9.8.7")},
		ClusterDomain: cluster.ClusterDomain, ServiceCIDRs: cluster.ServiceCIDRs(), Clock: clock,
	})
	if err != nil {
		t.Fatal(err)
	}
	store := sqlite.New(sqlite.Config{Dir: dir.ServerDB(), Socket: filepath.Join(t.TempDir(), "kine.sock")})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{pki: certificates, port: listener.Addr().(*net.TCPAddr).Port, controllersPort: freePort(t), schedulerPort: freePort(t)}
	p.api, err = apiserver.New(apiserver.Config{
		Addr: listener.Addr(), AdvertiseAddress: netip.MustParseAddr("10.9.8.7"), Cluster: cluster,
		Datastore: apiserver.Datastore(store.Endpoint()), Files: certificates.Files, Now: clock.Now,
		Egress: apiserver.Egress{Tunnels: &p.kubelet, PodCIDRs: cluster.PodCIDRs()}, MetricsTLS: certificates.KubeletTLS(resourcemetrics.User),
		Lean: lean.New(),
	})
	if err != nil {
		t.Fatal(err)
	}
	elected := p.newLoops(t, "a", p.controllersPort, p.schedulerPort)

	ready := make(chan struct{})
	group := &component.Group{OnChange: func(s component.Status) { t.Logf("%v %s %s %s", time.Since(began), s.Name, s.State, s.Error) }}
	supervisor := p.supervisor(listener)
	last := component.Step("test", func(context.Context) error { close(ready); return nil })
	group.Add(store)
	group.Add(supervisor)
	group.Add(p.api, store, supervisor)
	elected.addTo(group, p.api)
	group.Add(last, elected.controllers, elected.scheduler)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- group.Run(ctx) }()
	p.stop = func() {
		cancel()
		select {
		case err, ok := <-ended:
			if ok && err != nil {
				t.Errorf("control plane ended with %v", err)
			}
		case <-time.After(patience):
			t.Fatal("control plane did not stop")
		}
		close(ended)
		p.stop = func() {}
	}
	t.Cleanup(func() { p.stop() })
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("control plane ended with %v", err)
	case <-time.After(patience):
		t.Fatal("control plane is not ready")
	}
	return p
}

// supervisor stands in for the real one.
func (p *plane) supervisor(listener net.Listener) component.Component {
	return component.Func("supervisor", func(ctx context.Context, ready func()) error {
		server := &http.Server{Handler: p.api, TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12,
			ClientAuth: tls.RequestClientCert,
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if certificate, err := p.api.Certificate(hello); certificate != nil || err != nil {
					return certificate, err
				}
				return p.pki.ServingCertificate(hello)
			},
		}}
		ready()
		context.AfterFunc(ctx, func() { server.Close() })
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
}

func (p *plane) client(t *testing.T, certificate ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.pki.ServerCA())
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificate}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (p *plane) testPort(t *testing.T) {
	for path, want := range map[string]int{"/readyz": 200, "/livez": 200, "/healthz": 200, "/version": 401, "/api": 401, "/metrics": 401} {
		status, body := get(t, p.client(t), fmt.Sprintf("https://127.0.0.1:%d%s", p.port, path))
		if status != want {
			t.Errorf("anonymous GET %s is %d %s, want %d", path, status, body, want)
		}
	}
}

func (p *plane) testHealth(t *testing.T) {
	for _, port := range []int{p.controllersPort, p.schedulerPort} {
		for path, want := range map[string]int{"/healthz": 200, "/metrics": 401} {
			status, body := get(t, p.client(t), fmt.Sprintf("https://127.0.0.1:%d%s", port, path))
			if status != want {
				t.Errorf("anonymous GET %s on port %d is %d %s, want %d", path, port, status, body, want)
			}
		}
	}
}

func (p *plane) testCertificate(ctx context.Context, t *testing.T) {
	certificate, err := tls.LoadX509KeyPair(p.pki.KubeletClientCertFile, p.pki.KubeletClientKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	status, body := get(t, p.client(t, certificate), fmt.Sprintf("https://127.0.0.1:%d/version", p.port))
	if status != 200 {
		t.Errorf("GET /version with a certificate is %d %s", status, body)
	}
}

func testDeployment(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	createDeployment(ctx, t, admin, "web")
	awaitPods(ctx, t, admin, "web")
}

func createDeployment(ctx context.Context, t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	labels := map[string]string{"app": name}
	replicas := int32(2)
	_, err := admin.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitPods waits until controllers have made the pods of a Deployment, and the
// scheduler has found no node for them.
func awaitPods(ctx context.Context, t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	eventually(ctx, t, "pods that the scheduler has seen", func() (bool, error) {
		pods, err := admin.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil || len(pods.Items) != 2 {
			return false, err
		}
		for _, pod := range pods.Items {
			if len(pod.Status.Conditions) == 0 || pod.Status.Conditions[0].Reason != corev1.PodReasonUnschedulable {
				return false, nil
			}
		}
		return true, nil
	})
}

func clientset(t *testing.T, config *rest.Config) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func get(t *testing.T, client *http.Client, url string) (int, string) {
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func eventually(ctx context.Context, t *testing.T, what string, done func() (bool, error)) {
	t.Helper()
	for {
		ok, err := done()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no %s: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func freePort(t *testing.T) int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
