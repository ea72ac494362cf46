// Package scrape lets a Prometheus that has no discovery of Kubernetes, as Debian's has none, run
// configurations with such a discovery, and ServiceMonitors, which only the Prometheus Operator reads.
// Scenarios call it. It does what the discovery and the operator would do at that moment.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// group is an entry of static_configs.
type group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Static replaces each kubernetes_sd_configs of a Prometheus configuration by the targets that Prometheus
// would find, with the labels that it would give them.
func Static(ctx context.Context, client kubernetes.Interface, configuration string) (string, error) {
	var document map[string]any
	if err := yaml.Unmarshal([]byte(configuration), &document); err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	jobs, _ := document["scrape_configs"].([]any)
	if len(jobs) == 0 {
		return "", errors.New("the configuration has no jobs")
	}
	for _, job := range jobs {
		fields := job.(map[string]any)
		discoveries, _ := fields["kubernetes_sd_configs"].([]any)
		if len(discoveries) == 0 {
			return "", fmt.Errorf("the job %v does not discover its targets", fields["job_name"])
		}
		delete(fields, "kubernetes_sd_configs")
		var static []group
		for _, discovery := range discoveries {
			found, err := discover(ctx, client, discovery.(map[string]any))
			if err != nil {
				return "", err
			}
			static = append(static, found...)
		}
		fields["static_configs"] = static
	}
	text, err := yaml.Marshal(document)
	return string(text), err
}

// discover returns the targets of a role in namespaces.
func discover(ctx context.Context, client kubernetes.Interface, discovery map[string]any) ([]group, error) {
	role := fmt.Sprint(discovery["role"])
	if role == "node" {
		return nodes(ctx, client)
	}
	limits, _ := discovery["namespaces"].(map[string]any)
	namespaces, _ := limits["names"].([]any)
	if len(namespaces) == 0 {
		return nil, fmt.Errorf("the role %s needs namespaces here", role)
	}
	var all []group
	for _, namespace := range namespaces {
		services, err := client.CoreV1().Services(fmt.Sprint(namespace)).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, service := range services.Items {
			find := map[string]func(context.Context, kubernetes.Interface, *corev1.Service) ([]group, error){"endpoints": endpoints, "endpointslice": slicesOf}[role]
			if find == nil {
				return nil, fmt.Errorf("unknown role %q", role)
			}
			found, err := find(ctx, client, &service)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

func nodes(ctx context.Context, client kubernetes.Interface) ([]group, error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var all []group
	for _, node := range list.Items {
		i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
		if i < 0 {
			return nil, fmt.Errorf("node %s has no address", node.Name)
		}
		labels := map[string]string{"__meta_kubernetes_node_name": node.Name, "instance": node.Name}
		addLabels(labels, "node", node.Labels)
		all = append(all, group{[]string{target(node.Status.Addresses[i].Address, node.Status.DaemonEndpoints.KubeletEndpoint.Port)}, labels})
	}
	return all, nil
}

// slicesOf are the targets of the role endpointslice.
func slicesOf(ctx context.Context, client kubernetes.Interface, service *corev1.Service) ([]group, error) {
	list, err := client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name})
	if err != nil {
		return nil, err
	}
	var all []group
	for _, slice := range list.Items {
		for _, port := range slice.Ports {
			for _, endpoint := range slice.Endpoints {
				for _, address := range endpoint.Addresses {
					labels := ofService(service)
					labels["__meta_kubernetes_endpointslice_port_name"] = *port.Name
					addTarget(labels, "endpointslice", endpoint.TargetRef)
					all = append(all, group{[]string{target(address, *port.Port)}, labels})
				}
			}
		}
	}
	return all, nil
}

// endpoints are the targets of the role endpoints.
func endpoints(ctx context.Context, client kubernetes.Interface, service *corev1.Service) ([]group, error) {
	list, err := client.CoreV1().Endpoints(service.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + service.Name})
	if err != nil {
		return nil, err
	}
	var all []group
	for _, object := range list.Items {
		for _, subset := range object.Subsets {
			for _, port := range subset.Ports {
				for _, address := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
					labels := ofService(service)
					labels["__meta_kubernetes_endpoint_port_name"] = port.Name
					addTarget(labels, "endpoint", address.TargetRef)
					all = append(all, group{[]string{target(address.IP, port.Port)}, labels})
				}
			}
		}
	}
	return all, nil
}

func target(address string, port int32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

func ofService(service *corev1.Service) map[string]string {
	labels := map[string]string{"__meta_kubernetes_namespace": service.Namespace, "__meta_kubernetes_service_name": service.Name}
	addLabels(labels, "service", service.Labels)
	return labels
}

func addTarget(labels map[string]string, role string, object *corev1.ObjectReference) {
	if object != nil {
		labels["__meta_kubernetes_"+role+"_address_target_kind"] = object.Kind
		labels["__meta_kubernetes_"+role+"_address_target_name"] = object.Name
	}
}

func addLabels(labels map[string]string, of string, more map[string]string) {
	for name, value := range more {
		labels["__meta_kubernetes_"+of+"_label_"+sanitize(name)] = value
		labels["__meta_kubernetes_"+of+"_labelpresent_"+sanitize(name)] = "true"
	}
}

var noLabel = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// sanitize makes a label of Kubernetes one of Prometheus.
func sanitize(name string) string { return noLabel.ReplaceAllString(name, "_") }

// monitor is what Monitors reads of a ServiceMonitor. Other fields are errors.
type monitor struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct{ Name, Namespace string }
	Spec       struct {
		JobLabel          string `json:"jobLabel"`
		NamespaceSelector struct {
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		Endpoints []struct {
			Port              string       `json:"port"`
			Path              string       `json:"path"`
			Scheme            string       `json:"scheme"`
			Interval          string       `json:"interval"`
			HonorLabels       bool         `json:"honorLabels"`
			HonorTimestamps   *bool        `json:"honorTimestamps"`
			BearerTokenFile   string       `json:"bearerTokenFile"`
			Relabelings       []relabeling `json:"relabelings"`
			MetricRelabelings []relabeling `json:"metricRelabelings"`
			TLSConfig         struct {
				CAFile             string `json:"caFile"`
				ServerName         string `json:"serverName"`
				InsecureSkipVerify bool   `json:"insecureSkipVerify"`
			} `json:"tlsConfig"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// relabeling is a relabeling in both spellings: the operator's JSON in, Prometheus' out.
type relabeling struct {
	SourceLabels []string `json:"sourceLabels"`
	TargetLabel  string   `json:"targetLabel"`
	Regex        string   `json:"regex"`
	Replacement  string   `json:"replacement"`
	Action       string   `json:"action"`
}

func (r relabeling) prometheus() map[string]any {
	out := map[string]any{}
	for name, value := range map[string]string{"target_label": r.TargetLabel, "regex": r.Regex, "replacement": r.Replacement, "action": r.Action} {
		if value != "" {
			out[name] = value
		}
	}
	if len(r.SourceLabels) > 0 {
		out["source_labels"] = r.SourceLabels
	}
	return out
}

// Monitors returns the Prometheus configuration that the operator makes of ServiceMonitors, which are
// YAML documents. Its targets are those of the role endpoints, which is the operator's default.
func Monitors(documents string) (string, error) {
	var jobs []any
	for _, document := range strings.Split(documents, "\n---\n") {
		var m monitor
		if err := yaml.UnmarshalStrict([]byte(document), &m); err != nil {
			return "", fmt.Errorf("read ServiceMonitor: %w", err)
		}
		if m.Kind != "ServiceMonitor" {
			return "", fmt.Errorf("a %s cannot be translated", m.Kind)
		}
		for i, endpoint := range m.Spec.Endpoints {
			verify := map[string]any{"insecure_skip_verify": endpoint.TLSConfig.InsecureSkipVerify}
			if endpoint.TLSConfig.CAFile != "" {
				verify["ca_file"] = endpoint.TLSConfig.CAFile
			}
			if endpoint.TLSConfig.ServerName != "" {
				verify["server_name"] = endpoint.TLSConfig.ServerName
			}
			job := map[string]any{
				"job_name":              fmt.Sprintf("serviceMonitor/%s/%s/%d", m.Metadata.Namespace, m.Metadata.Name, i),
				"honor_labels":          endpoint.HonorLabels,
				"scheme":                endpoint.Scheme,
				"tls_config":            verify,
				"authorization":         map[string]any{"credentials_file": endpoint.BearerTokenFile},
				"kubernetes_sd_configs": []any{map[string]any{"role": "endpoints", "namespaces": map[string]any{"names": m.Spec.NamespaceSelector.MatchNames}}},
			}
			if endpoint.HonorTimestamps != nil {
				job["honor_timestamps"] = *endpoint.HonorTimestamps
			}
			if endpoint.Path != "" {
				job["metrics_path"] = endpoint.Path
			}
			var relabelings, metricRelabelings []any
			add := func(r ...relabeling) {
				for _, one := range r {
					relabelings = append(relabelings, one.prometheus())
				}
			}
			for name, value := range m.Spec.Selector.MatchLabels {
				label := "__meta_kubernetes_service_label_" + sanitize(name)
				add(relabeling{SourceLabels: []string{label}, Regex: value, Action: "keep"})
			}
			add(
				relabeling{SourceLabels: []string{"__meta_kubernetes_endpoint_port_name"}, Regex: endpoint.Port, Action: "keep"},
				relabeling{SourceLabels: []string{"__meta_kubernetes_endpoint_address_target_kind", "__meta_kubernetes_endpoint_address_target_name"}, Regex: "Node;(.*)", TargetLabel: "node", Replacement: "${1}"},
				relabeling{SourceLabels: []string{"__meta_kubernetes_namespace"}, TargetLabel: "namespace"},
				relabeling{SourceLabels: []string{"__meta_kubernetes_service_name"}, TargetLabel: "service"},
				relabeling{SourceLabels: []string{"__meta_kubernetes_service_name"}, TargetLabel: "job"},
			)
			if m.Spec.JobLabel != "" {
				add(relabeling{SourceLabels: []string{"__meta_kubernetes_service_label_" + sanitize(m.Spec.JobLabel)}, Regex: "(.+)", TargetLabel: "job", Replacement: "${1}"})
			}
			add(relabeling{TargetLabel: "endpoint", Replacement: endpoint.Port})
			add(endpoint.Relabelings...)
			for _, r := range endpoint.MetricRelabelings {
				metricRelabelings = append(metricRelabelings, r.prometheus())
			}
			job["relabel_configs"] = relabelings
			if metricRelabelings != nil {
				job["metric_relabel_configs"] = metricRelabelings
			}
			jobs = append(jobs, job)
		}
	}
	text, err := yaml.Marshal(map[string]any{"scrape_configs": jobs})
	return string(text), err
}
