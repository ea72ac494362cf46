package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/kedge-dev/kedge/internal/controlplane/resourcemetrics"
)

// fakeKubelet is the kubelet of the node called node. It is also the tunnel to it.
type fakeKubelet struct {
	address atomic.Value
	// uid is that of its only pod.
	uid atomic.Value
	// caller is who has asked it last, and for what.
	caller atomic.Value
}

// Dial implements apiserver.Tunnels.
func (k *fakeKubelet) Dial(ctx context.Context, node, address string) (net.Conn, error) {
	if node != "node" || address != "node:10250" {
		return nil, fmt.Errorf("dialed %s on node %s", address, node)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", k.address.Load().(string))
}

func (k *fakeKubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.caller.Store(r.TLS.VerifiedChains[0][0].Subject.CommonName + " " + r.URL.String())
	fmt.Fprintf(w, `{"node": {"startTime": "2026-05-01T12:00:00Z", "cpu": {"time": "2026-05-01T13:00:00Z", "usageNanoCores": 1500000000, "usageCoreNanoSeconds": 9000000000}, "memory": {"workingSetBytes": 1048576}},
		"pods": [{"podRef": {"uid": %q}, "containers": [{"name": "main", "startTime": "2026-05-01T12:00:00Z",
		"cpu": {"time": "2026-05-01T13:00:00Z", "usageNanoCores": 250000000, "usageCoreNanoSeconds": 9000000000}, "memory": {"workingSetBytes": 2097152}}]}]}`, k.uid.Load())
}

// testMetrics asks the API server for what a pod uses, as kubectl and the controllers do.
func (p *plane) testMetrics(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	kubelet := httptest.NewUnstartedServer(&p.kubelet)
	certificate, err := tls.LoadX509KeyPair(p.pki.KubeletServingCertFile, p.pki.KubeletServingKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.pki.ClientCA())
	kubelet.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots}
	kubelet.StartTLS()
	defer kubelet.Close()
	p.kubelet.address.Store(kubelet.Listener.Addr().String())

	if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"zone": "a"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const addresses = `{"status": {"addresses": [{"type": "Hostname", "address": "node"}]}}`
	if _, err := admin.CoreV1().Nodes().Patch(ctx, "node", types.MergePatchType, []byte(addresses), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	pod, err := admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "busy", Labels: map[string]string{"app": "busy"}},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "main", Image: "example.com/busy"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.kubelet.uid.Store(string(pod.UID))
	if _, err := admin.CoreV1().Pods("default").Patch(ctx, "busy", types.MergePatchType, []byte(`{"status": {"phase": "Running"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	client, err := metricsclient.NewForConfig(p.api.ClientConfig("admin", "system:masters"))
	if err != nil {
		t.Fatal(err)
	}
	api := client.MetricsV1beta1()
	eventually(ctx, t, "metrics of the pod", func() (bool, error) {
		_, err := api.PodMetricses("default").Get(ctx, "busy", metav1.GetOptions{})
		return err == nil, err
	})
	if caller := p.kubelet.caller.Load(); caller != resourcemetrics.User+" /stats/summary?only_cpu_and_memory=true" {
		t.Errorf("the kubelet was asked by %s", caller)
	}
	for selector, want := range map[string]int{"app=busy": 1, "app=web": 0, "": 1} {
		list, err := api.PodMetricses("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil || len(list.Items) != want {
			t.Errorf("pods with %q: got %v, %v", selector, list, err)
		}
	}
	list, err := api.PodMetricses("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=busy"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Containers[0].Usage.Cpu().MilliValue() != 250 || list.Items[0].Containers[0].Usage.Memory().Value() != 2<<20 {
		t.Errorf("got %v, %v", list, err)
	}
	nodes, err := api.NodeMetricses().List(ctx, metav1.ListOptions{LabelSelector: "zone=a"})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Usage.Cpu().MilliValue() != 1500 {
		t.Errorf("got %v, %v", nodes, err)
	}
	if _, err := api.PodMetricses("default").Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("no pod: got %v", err)
	}
	if _, err := api.NodeMetricses().Watch(ctx, metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a watch: got %v", err)
	}

	nobody, err := metricsclient.NewForConfig(p.api.ClientConfig("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nobody.MetricsV1beta1().NodeMetricses().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("nobody: got %v", err)
	}

	const path = "/apis/metrics.k8s.io/v1beta1"
	table := struct {
		Kind string
		Rows []struct{ Cells []string }
	}{}
	p.getJSON(ctx, t, path+"/namespaces/default/pods", "application/json;as=Table;v=v1;g=meta.k8s.io", &table)
	if table.Kind != "Table" || len(table.Rows) != 1 || strings.Join(table.Rows[0].Cells, " ") != "busy 250m 2Mi 1m0s" {
		t.Errorf("the table is %+v", table)
	}
	discovery, err := admin.Discovery().ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	kinds := ""
	for _, group := range discovery {
		if group.GroupVersion == "metrics.k8s.io/v1beta1" {
			for _, resource := range group.APIResources {
				kinds += fmt.Sprint(resource.Name, " ", resource.Kind, " ", resource.Namespaced, " ", resource.Verbs, "; ")
			}
		}
	}
	for _, kind := range []string{"nodes NodeMetrics false [get list]; ", "pods PodMetrics true [get list]; "} {
		if !strings.Contains(kinds, kind) {
			t.Errorf("discovered %q, want %q in it", kinds, kind)
		}
	}
	var document struct {
		Components struct {
			Schemas map[string]struct {
				Kinds []metav1.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
			}
		}
	}
	p.getJSON(ctx, t, "/openapi/v3"+path, "application/json", &document)
	if kinds := document.Components.Schemas["io.k8s.metrics.pkg.apis.metrics.v1beta1.PodMetrics"].Kinds; len(kinds) != 1 || kinds[0].Kind != "PodMetrics" {
		t.Errorf("the OpenAPI document says %+v of PodMetrics, of %d schemas", kinds, len(document.Components.Schemas))
	}
	if err := admin.CoreV1().Nodes().Delete(ctx, "node", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// getJSON decodes the answer of the API to an administrator.
func (p *plane) getJSON(ctx context.Context, t *testing.T, path, accept string, into any) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kubernetes.default.svc"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := p.api.ClientConfig("admin", "system:masters").Transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("GET %s is %d %.300s: %v", path, response.StatusCode, text, err)
	}
}
