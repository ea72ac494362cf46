package metrics

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// names is a registry with a metric of each of these names.
func names(all ...string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		var families []*dto.MetricFamily
		for _, name := range all {
			families = append(families, &dto.MetricFamily{Name: &name, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: new(1.0)}}}})
		}
		return families, nil
	})
}

var (
	kubernetesNames = []string{
		"apiserver_request_total", "etcd_requests_total", "go_gc_duration_seconds", "go_goroutines",
		"kedge_network_policy_dropped_packets_total", "kubelet_running_pods", "kubeproxy_sync_proxy_rules_duration_seconds",
		"process_cpu_seconds_total", "rest_client_requests_total", "scheduler_pending_pods", "unheard_of", "workqueue_depth",
	}
	processNames = []string{
		"coredns_dns_requests_total", "etcd_server_has_leader", "go_goroutines", "go_threads", "grpc_server_handled_total", "process_cpu_seconds_total",
	}
	both = []string{"go_goroutines", "process_cpu_seconds_total"}
)

// read returns the names of the metrics at a path, without those that each place has.
func read(t *testing.T, handler http.Handler) []string {
	t.Helper()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, Path, nil))
	text, err := io.ReadAll(answer.Result().Body)
	if err != nil || answer.Code != http.StatusOK || !strings.HasPrefix(answer.Result().Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("status %d, %v, %v, %s", answer.Code, answer.Result().Header, err, text)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, " "); ok && name != "#" {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return nil
	}
	for _, name := range both {
		if !slices.Contains(found, name) {
			t.Errorf("no %s among %v", name, found)
		}
	}
	return slices.DeleteFunc(found, func(name string) bool { return slices.Contains(both, name) })
}

// TestPaths wants each metric at one place of each kind of process.
func TestPaths(t *testing.T) {
	for name, test := range map[string]struct {
		parts []Part
		want  map[string][]string // port and path
	}{
		"a server": {
			[]Part{APIServer, Controllers, Scheduler, Kubelet, Proxy, DNS},
			map[string][]string{
				"apiserver/metrics":                    {"apiserver_request_total", "etcd_requests_total", "go_gc_duration_seconds", "kedge_datastore_size_bytes", "rest_client_requests_total", "unheard_of"},
				"kube-controller-manager/metrics":      {"workqueue_depth"},
				"kube-controller-manager/metrics/slis": nil,
				"kube-scheduler/metrics":               {"scheduler_pending_pods"},
				"kube-scheduler/metrics/slis":          nil,
				"kubelet/metrics":                      {"kedge_network_policy_dropped_packets_total", "kubelet_running_pods"},
				"kubelet/metrics/dns":                  {"coredns_dns_requests_total"},
				"kubelet/metrics/proxy":                {"kubeproxy_sync_proxy_rules_duration_seconds"},
				"kubelet/metrics/slis":                 nil,
			},
		},
		"a server without a node": {
			[]Part{APIServer, Controllers, Scheduler, Etcd},
			map[string][]string{
				"apiserver/metrics": {"apiserver_request_total", "etcd_requests_total", "go_gc_duration_seconds", "kedge_datastore_size_bytes",
					"kedge_network_policy_dropped_packets_total", "kubelet_running_pods", "kubeproxy_sync_proxy_rules_duration_seconds",
					"rest_client_requests_total", "unheard_of"},
				"apiserver/metrics/etcd":               {"etcd_server_has_leader", "grpc_server_handled_total"},
				"kube-controller-manager/metrics":      {"workqueue_depth"},
				"kube-controller-manager/metrics/slis": nil,
				"kube-scheduler/metrics":               {"scheduler_pending_pods"},
				"kube-scheduler/metrics/slis":          nil,
			},
		},
		"a server with etcd only": {
			[]Part{Kubelet, Proxy, Etcd},
			map[string][]string{
				"kubelet/metrics": {"apiserver_request_total", "etcd_requests_total", "go_gc_duration_seconds", "kedge_datastore_size_bytes",
					"kedge_network_policy_dropped_packets_total", "kubelet_running_pods", "rest_client_requests_total", "scheduler_pending_pods",
					"unheard_of", "workqueue_depth"},
				"kubelet/metrics/etcd":  {"etcd_server_has_leader", "grpc_server_handled_total"},
				"kubelet/metrics/proxy": {"kubeproxy_sync_proxy_rules_duration_seconds"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Divide(test.parts...)
			d.kubernetes, d.process = names(kubernetesNames...), names(processNames...)
			d.Registerer(APIServer).MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "kedge_datastore_size_bytes"}))
			got := map[string][]string{}
			for _, port := range []Part{APIServer, Controllers, Scheduler, Kubelet} {
				if !d.Serves(port) {
					continue
				}
				for path, handler := range d.Paths(port) {
					got[string(port)+path] = read(t, handler)
				}
			}
			for _, place := range slices.Sorted(maps.Keys(got)) {
				if want, ok := test.want[place]; !ok || !slices.Equal(got[place], want) {
					t.Errorf("%s has %v, want %v", place, got[place], want)
				}
			}
			var all []string
			for place := range test.want {
				all = append(all, got[place]...)
			}
			slices.Sort(all)
			if len(all) != len(slices.Compact(slices.Clone(all))) {
				t.Errorf("a metric is at two places: %v", all)
			}
			for _, name := range kubernetesNames {
				if !slices.Contains(all, name) && !slices.Contains(both, name) {
					t.Errorf("%s is nowhere", name)
				}
			}
		})
	}
}

// TestFault wants the metrics that could be collected, and the error.
func TestFault(t *testing.T) {
	fault := errors.New("one collector failed")
	families, err := only(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		found, _ := names("a", "b").Gather()
		return found, fault
	}), func(name string) bool { return name == "a" }).Gather()
	if !errors.Is(err, fault) || len(families) != 1 || families[0].GetName() != "a" {
		t.Errorf("got %v, %v", families, err)
	}
}

// TestOwners compares the table with the metrics that Kubernetes's sources make.
func TestOwners(t *testing.T) {
	from, count := newSources(t), 0
	d := Divide(APIServer, Controllers, Scheduler, Kubelet, Proxy, DNS)
	for part, packages := range folders {
		for _, pkg := range packages {
			from.metrics(pkg, func(name string) {
				count++
				want := part
				if strings.HasPrefix(name, "workqueue_") || name == "running_managed_controllers" {
					want = Controllers
				}
				if got := d.owner(name); got != want && !inOwnRegistry(name, want) {
					t.Errorf("%s is served by %s, and %s makes it for %s: change the table owners", name, got, pkg, want)
				}
			})
		}
	}
	t.Logf("%d metrics", count)
	if count < 500 {
		t.Errorf("found %d metrics in Kubernetes's sources, want more than 500", count)
	}
}

// inOwnRegistry tells whether a metric is in none of the registries that are divided.
func inOwnRegistry(name string, of Part) bool {
	return of != Controllers && begins(name, []string{"container_", "kube_pod_resource_", "node_", "pod_", "prober_", "resource_scrape_error", "scrape_error"})
}
