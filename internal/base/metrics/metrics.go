// Package metrics says at which place of this process each metric is served.
//
// All parts of Kubernetes in a process register their metrics with one registry, and
// each of upstream's handlers serves all of it. So a Prometheus that scrapes every part
// would store each metric several times, under the names of the wrong jobs. Here each
// metric has one place, with the job's usual name: see Division. The boot lists make the
// division, and the parts serve their handlers.
package metrics

import (
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Part is a part of the process that serves its metrics at a place of its own. The value
// is the usual name of its job in Prometheus.
type Part string

// The parts.
const (
	APIServer   Part = "apiserver"
	Controllers Part = "kube-controller-manager"
	Scheduler   Part = "kube-scheduler"
	Kubelet     Part = "kubelet"
	Proxy       Part = "kube-proxy"
	DNS         Part = "coredns"
	Etcd        Part = "kube-etcd"
)

// The paths of the parts that have no port of their own.
const (
	Path      = "/metrics"
	ProxyPath = Path + "/proxy"
	DNSPath   = Path + "/dns"
	EtcdPath  = Path + "/etcd"
	// SLIsPath has the results of health checks, which have a registry of their own.
	SLIsPath = Path + "/slis"
)

// owners have the beginnings of the names of each part's metrics in Kubernetes's
// registry. A metric with another name belongs to the whole process. A test compares this
// with Kubernetes's sources.
var owners = []struct {
	part   Part
	starts []string
}{
	{Controllers, []string{
		"attach_detach_controller_", "attachdetach_controller_", "cloud_node_lifecycle_controller_", "cloud_provider_",
		"clustertrustbundle_publisher_",
		"cronjob_controller_", "daemonset_controller_", "device_taint_eviction_controller_", "endpoint_slice_controller_",
		"endpoint_slice_mirroring_controller_", "ephemeral_volume_controller_", "garbagecollector_controller_",
		"horizontal_pod_autoscaler_controller_", "job_controller_", "node_collector_", "node_controller_",
		"node_ipam_controller_", "pod_gc_collector_", "pv_collector_", "replicaset_controller_", "resourceclaim_controller_",
		"resourcepoolstatusrequest_controller_", "retroactive_storageclass_", "root_ca_cert_publisher_", "route_controller_",
		"selinux_warning_controller_", "service_controller_", "statefulset_controller_",
		"storage_count_attachable_volumes_in_use", "taint_eviction_controller_", "ttl_after_finished_controller_",
		"volume_operation_errors_total", "volume_operation_total_errors",
		// Every part has work queues and some of these, but most are the controllers'.
		"running_managed_controllers", "workqueue_",
	}},
	{Scheduler, []string{"scheduler_"}},
	{Proxy, []string{"kubeproxy_"}},
	{Kubelet, []string{
		"csi_node_storage_health_status", "csi_operations_seconds", "dra_", "force_cleaned_failed_volume_operation", "kubelet_", "plugin_manager_",
		"reconstruct_volume_operations_", "storage_operation_duration_seconds", "volume_manager_", "volume_operation_total_seconds",
		// The metrics of a node that kedge itself has.
		"kedge_network_policy_",
	}},
}

// ofProcess are the parts whose metrics are in the registry that the Prometheus library
// keeps for the process.
var ofProcess = map[Part][]string{
	DNS:  {"coredns_"},
	Etcd: {"etcd_", "grpc_server_", "os_fd_"},
}

// everywhere are metrics of the process that each place has, because the usual
// dashboards show them for each job.
var everywhere = []string{"process_", "go_goroutines"}

// Division is the places of one process, without any metric at two of them.
type Division struct {
	served []Part
	rest   Part
	// kubernetes and process are the two registries.
	kubernetes, process prometheus.Gatherer
	// own has what kedge registers itself.
	own map[Part]*prometheus.Registry
}

// Divide returns the division of a process that has the parts. The metrics of other
// parts, and those that belong to the whole process, are served by the API server, or
// else by the kubelet.
func Divide(parts ...Part) *Division {
	d := &Division{
		served: parts, rest: Kubelet, kubernetes: legacyregistry.DefaultGatherer, process: prometheus.DefaultGatherer,
		own: map[Part]*prometheus.Registry{},
	}
	if d.Serves(APIServer) {
		d.rest = APIServer
	}
	for _, part := range append([]Part{d.rest}, parts...) {
		d.own[part] = prometheus.NewRegistry()
	}
	return d
}

// Registerer takes metrics of kedge itself that a part serves, or another one if the
// process lacks this part. Unlike those in Kubernetes's registry they are only collected
// for the place that serves them.
func (d *Division) Registerer(part Part) prometheus.Registerer {
	if !d.Serves(part) {
		part = d.rest
	}
	return d.own[part]
}

// Serves tells whether the process has the part.
func (d *Division) Serves(part Part) bool { return slices.Contains(d.served, part) }

// Paths returns what the port of a part serves, by path: the metrics of the part, and of
// those that have no port of their own. The metrics are collected when a path is read.
func (d *Division) Paths(port Part) map[string]http.Handler {
	paths := map[string]http.Handler{Path: d.handler(port)}
	if port != d.rest {
		// Upstream would serve the health checks of the whole process again. The usual
		// targets are up with nothing, too.
		paths[SLIsPath] = promhttp.HandlerFor(prometheus.Gatherers{}, promhttp.HandlerOpts{})
	}
	for _, guest := range []struct {
		part Part
		path string
		host Part
	}{
		{Proxy, ProxyPath, Kubelet},
		{DNS, DNSPath, Kubelet},
		{Etcd, EtcdPath, d.EtcdPort()},
	} {
		if guest.host == port && d.Serves(guest.part) {
			paths[guest.path] = d.handler(guest.part)
		}
	}
	return paths
}

// EtcdPort returns the part at whose port etcd's metrics are: the kubelet, or the API
// server if there is no node.
func (d *Division) EtcdPort() Part {
	if d.Serves(Kubelet) {
		return Kubelet
	}
	return APIServer
}

// Mux is upstream's mux, in which handlers can be replaced.
type Mux interface {
	Unregister(path string)
	Handle(path string, handler http.Handler)
}

// Install replaces upstream's handlers of paths.
func Install(mux Mux, paths map[string]http.Handler) {
	for path, handler := range paths {
		mux.Unregister(path)
		mux.Handle(path, handler)
	}
}

func (d *Division) handler(part Part) http.Handler {
	return promhttp.HandlerFor(d.of(part), promhttp.HandlerOpts{ProcessStartTime: legacyregistry.GetProcessStart()})
}

// of returns what collects the metrics of a part.
func (d *Division) of(part Part) prometheus.Gatherer {
	from := only(d.kubernetes, func(name string) bool { return d.owner(name) == part || begins(name, everywhere) })
	if starts, ok := ofProcess[part]; ok {
		from = only(d.process, func(name string) bool { return begins(name, starts) || begins(name, everywhere) })
	}
	return prometheus.Gatherers{from, d.own[part]}
}

// owner returns the part that serves a metric of Kubernetes's registry.
func (d *Division) owner(name string) Part {
	for _, owner := range owners {
		if begins(name, owner.starts) && d.Serves(owner.part) {
			return owner.part
		}
	}
	return d.rest
}

func begins(name string, starts []string) bool {
	return slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(name, start) })
}

// only collects the metrics of from whose names are wanted.
func only(from prometheus.Gatherer, wanted func(name string) bool) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		return slices.DeleteFunc(families, func(family *dto.MetricFamily) bool { return !wanted(family.GetName()) }), err
	})
}
