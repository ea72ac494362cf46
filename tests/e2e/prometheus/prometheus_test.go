// Package prometheus watches a cluster with a real Prometheus on a host of its own: by the scrape
// configuration of docs/observing.md, and by the monitors of kube-prometheus. The Prometheus Operator
// itself cannot run here, so tests/harness/scrape translates the monitors as it would.
package prometheus

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/scrape"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	page      = "docs/observing.md"
	dashboard = "docs/grafana-dashboard.json"
	// secrets is where a pod has what it needs to reach the API, and folder is where the host has it.
	secrets = "/var/run/secrets/kubernetes.io/serviceaccount/"
	folder  = "/etc/prometheus/"
	port    = "9090"
)

// kubelets is the Service that the Prometheus Operator makes, with its endpoints.
const kubelets = `
apiVersion: v1
kind: Service
metadata:
  name: kubelet
  namespace: kube-system
  labels: {k8s-app: kubelet, app.kubernetes.io/name: kubelet, app.kubernetes.io/managed-by: prometheus-operator}
spec: {clusterIP: None, ports: [{name: https-metrics, port: 10250}]}
---
apiVersion: v1
kind: Endpoints
metadata:
  name: kubelet
  namespace: kube-system
  labels: {k8s-app: kubelet, app.kubernetes.io/name: kubelet, app.kubernetes.io/managed-by: prometheus-operator}
subsets:
- ports: [{name: https-metrics, port: 10250}]
  addresses:
  - {ip: %[1]s, targetRef: {kind: Node, name: server-1}}
  - {ip: %[2]s, targetRef: {kind: Node, name: agent-1}}
`

func TestPrometheus(t *testing.T) {
	harness.Require(t)
	network := harness.NewNetwork(t)
	server := cluster.NewHost(t, network, "server-1").StartServer(t, "--cluster-init")
	server.WaitReady()
	c := cluster.Of(t, server)
	agent := c.Join(network, "agent-1")
	c.RunWeb("web", "agent-1")
	w := &watched{Cluster: c, agent: agent, host: network.NewHost(t, "monitor")}
	w.apply(w.heredoc("kind: ClusterRole"))
	w.trust("prometheus")

	w.Run("places", func(t *testing.T) { w.in(t).places() })
	w.Run("scrape configuration", func(t *testing.T) { w.in(t).configuration() })
	w.Run("monitors", func(t *testing.T) { w.in(t).monitors() })
}

// watched is a cluster with a host that watches it.
type watched struct {
	*cluster.Cluster
	agent *harness.Agent
	host  *harness.Host
}

func (w *watched) in(t *testing.T) *watched {
	return &watched{&cluster.Cluster{T: t, Server: w.Server, Client: w.Client}, w.agent, w.host}
}

// apply creates objects in the namespaces that they name.
func (w *watched) apply(text string) {
	w.Helper()
	command := w.Server.Host.Kedge(w.Context(), "kubectl", "apply", "-f", "-")
	command.Stdin = strings.NewReader(text)
	if output, err := command.CombinedOutput(); err != nil {
		w.Fatalf("apply: %v, %s", err, output)
	}
}

// heredoc returns what the document has between <<'END' and END, where that contains a text.
func (w *watched) heredoc(with string) string {
	w.Helper()
	for _, match := range regexp.MustCompile(`(?s)<<'END'\n(.*?)\nEND\n`).FindAllStringSubmatch(harness.Document(w, page), -1) {
		if strings.Contains(match[1], with) {
			return match[1] + "\n"
		}
	}
	w.Fatalf("no %q in %s", with, page)
	return ""
}

// trust gives the host the token of a ServiceAccount of the namespace monitoring, and what pods verify
// certificates by.
func (w *watched) trust(account string) {
	w.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(3600))}}
	token, err := w.Client.CoreV1().ServiceAccounts("monitoring").CreateToken(w.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	root, err := w.Client.CoreV1().ConfigMaps("monitoring").Get(w.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.host.WriteFile(folder+"token", token.Status.Token)
	w.host.WriteFile(folder+"ca.crt", root.Data["ca.crt"])
}

// places asks each place with credentials of three kinds. The certificates are verified.
func (w *watched) places() {
	w.Kubectl("create", "serviceaccount", "nobody", "-n", "monitoring")
	server, agent := w.Server.Host.Address.String(), w.agent.Host.Address.String()
	for _, place := range []struct{ url, has, lacks string }{
		{server + ":6443/metrics", "apiserver_request_total", "kubelet_|scheduler_|kubeproxy_|workqueue_|etcd_server_"},
		{server + ":6443/metrics/slis", "kubernetes_healthcheck", "apiserver_"},
		{server + ":10257/metrics", "workqueue_depth", "apiserver_|rest_client_|go_gc_"},
		{server + ":10259/metrics", "scheduler_pending_pods", "apiserver_|workqueue_"},
		{server + ":10259/metrics/resources", "", "scheduler_"}, // no pod requests anything
		{server + ":10259/metrics/slis", "", "."},
		{server + ":10250/metrics", "kubelet_running_pods", "apiserver_|go_gc_|kubeproxy_|kedge_datastore_"},
		{server + ":10250/metrics/cadvisor", "container_cpu_usage_seconds_total", "kubelet_"},
		{server + ":10250/metrics/dns", "coredns_dns_requests_total", "kubelet_"},
		{server + ":10250/metrics/proxy", "kubeproxy_sync_proxy_rules_duration_seconds", "kubelet_"},
		{server + ":10250/metrics/etcd", "etcd_server_has_leader", "kubelet_"},
		{server + ":10250/metrics/slis", "", "."},
		{agent + ":10250/metrics", "kubelet_running_pods", "kubeproxy_|coredns_|etcd_server_"},
		{agent + ":10250/metrics", "go_gc_duration_seconds", "kubeproxy_"},
		{agent + ":10250/metrics/dns", "coredns_dns_requests_total", "kubelet_"},
		{agent + ":10250/metrics/slis", "process_start_time_seconds", "kubelet_"},
	} {
		status, text := w.fetch(place.url, "prometheus")
		wrong := regexp.MustCompile(`(?m)^(` + place.lacks + `)[^ ]*`).FindString(text)
		if status != "200" || wrong != "" || !strings.Contains(text, place.has) {
			w.Errorf("%s has status %s and %q, want %q: %.500s", place.url, status, wrong, place.has, text)
		}
		for _, account := range []string{"", "wrong", "nobody"} {
			status, text := w.fetch(place.url, account)
			// The API server, whose rules hold at its three ports, knows strangers as anonymous.
			want := []string{"401", "403"}
			if account == "nobody" {
				want = []string{"403"}
			} else if account == "wrong" {
				want = []string{"401"}
			}
			if !slices.Contains(want, status) || strings.Contains(text, "# TYPE") {
				w.Errorf("%s answers %q with status %s and %.200s", place.url, account, status, text)
			}
		}
	}
	if status, _ := w.fetch(agent+":10250/metrics/etcd", "prometheus"); status != "404" {
		w.Errorf("etcd of an agent has status %s", status)
	}
}

// fetch returns the status and the body at a URL for a ServiceAccount, "" or "wrong".
func (w *watched) fetch(url, account string) (status, body string) {
	w.Helper()
	args := []string{"--silent", "--show-error", "--cacert", folder + "ca.crt", "--write-out", "\n%{http_code}", "https://" + url}
	switch account {
	case "":
	case "wrong":
		args = append(args, "--header", "Authorization: Bearer wrong")
	default:
		w.trust(account)
		args = append(args, "--header", "Authorization: Bearer "+w.read(folder+"token"))
	}
	output, err := w.host.Command(w.Context(), "curl", args...).CombinedOutput()
	if err != nil {
		w.Fatalf("%s: %v, %s", url, err, output)
	}
	end := strings.LastIndexByte(string(output), '\n')
	return string(output[end+1:]), string(output[:end])
}

func (w *watched) read(path string) string {
	w.Helper()
	text, err := os.ReadFile(w.host.Path(path))
	if err != nil {
		w.Fatal(err)
	}
	return string(text)
}

// configuration runs the scrape configuration of the document, and the queries of the dashboard.
func (w *watched) configuration() {
	w.trust("prometheus")
	config := strings.Replace(w.heredoc("scrape_configs:"), "scrape_interval: 30s", "scrape_interval: 3s", 1)
	w.start(config)
	w.up(map[string]int{
		"apiserver": 1, "kube-controller-manager": 1, "kube-scheduler": 1, "kube-etcd": 1,
		"kubelet /metrics": 2, "kubelet /metrics/cadvisor": 2, "kubelet /metrics/probes": 2, "coredns /metrics/dns": 2, "kube-proxy /metrics/proxy": 2,
	})
	w.once()
	w.rules()
	w.dashboard()
}

// monitors runs the monitors of kube-prometheus, with the changes that the document wants.
func (w *watched) monitors() {
	w.apply(fmt.Sprintf(kubelets, w.Server.Host.Address, w.agent.Host.Address))
	text, err := os.ReadFile("testdata/servicemonitors.yaml")
	if err != nil {
		w.Fatal(err)
	}
	own := regexp.MustCompile("(?s)```yaml\n(apiVersion: monitoring.coreos.com/v1\n.*?)```").FindStringSubmatch(harness.Document(w, page))
	if own == nil {
		w.Fatalf("no monitors in %s", page)
	}
	const skip, verify = "insecureSkipVerify: true", "caFile: " + secrets + "ca.crt"
	if !strings.Contains(harness.Document(w, page), "`"+skip+"` by `"+verify+"`") {
		w.Errorf("%s does not say how certificates are verified", page)
	}
	config, err := scrape.Monitors(strings.ReplaceAll(string(text), skip, verify) + "---\n" + own[1])
	if err != nil {
		w.Fatal(err)
	}
	w.start("global: {scrape_interval: 3s}\n" + config)
	w.up(map[string]int{
		// The operator gives the target of /metrics/slis the same labels as that of /metrics.
		"apiserver": 1, "kube-controller-manager": 1, "kube-scheduler": 1, "kube-etcd": 1, "coredns": 2, "kube-proxy": 2,
		"kubelet /metrics": 2, "kubelet /metrics/cadvisor": 2, "kubelet /metrics/probes": 2, "kubelet /metrics/slis": 2,
	})
	w.once()
	w.rules()

	w.Log("an agent ends")
	w.agent.Terminate()
	w.Eventually("the target of the agent to be down", func() error {
		down, err := w.query(`up{job="kubelet", metrics_path="/metrics"} == 0`)
		if err == nil && (len(down) != 1 || down[0].Metric["node"] != "agent-1") {
			err = fmt.Errorf("down is %v", down)
		}
		return err
	})
	w.agent.Start()
	w.agent.WaitReady()
}

// start runs a Prometheus until the end of this part of the test.
func (w *watched) start(config string) {
	w.Helper()
	if strings.Contains(config, "insecure_skip_verify: true") {
		w.Errorf("certificates are not verified")
	}
	repository, err := harness.Repository()
	if err != nil {
		w.Fatal(err)
	}
	var static string
	w.Eventually("the endpoints of etcd", func() error {
		if static, err = scrape.Static(w.Context(), w.Client, config); err == nil && strings.Count(static, "kube-etcd") < 3 {
			err = errors.New(static)
		}
		return err
	})
	w.host.WriteFile(folder+"prometheus.yml", strings.ReplaceAll(static, secrets, folder))
	command := w.host.Command(w.Context(), filepath.Join(repository, "build", runtime.GOARCH, "prometheus"),
		"--config.file="+folder+"prometheus.yml", "--storage.tsdb.path="+w.host.Scratch(strings.ReplaceAll(w.Name(), "/", "-")), "--web.listen-address=127.0.0.1:"+port)
	var log strings.Builder
	command.Stderr = &log
	if err := command.Start(); err != nil {
		w.Fatalf("start Prometheus (`make %s` gets it): %v", filepath.Join("build", runtime.GOARCH, "prometheus"), err)
	}
	w.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if w.Failed() {
			w.Logf("Prometheus: %s", log.String())
		}
	})
}

type series struct {
	Metric map[string]string
	Value  [2]any
}

// query asks Prometheus.
func (w *watched) query(expression string) ([]series, error) {
	output, err := w.host.Command(w.Context(), "curl", "--silent", "--get", "--data-urlencode", "query="+expression,
		"http://127.0.0.1:"+port+"/api/v1/query").Output()
	if err != nil {
		return nil, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []series }
	}
	if err := json.Unmarshal(output, &answer); err != nil {
		return nil, fmt.Errorf("read the answer of Prometheus: %w", err)
	}
	if answer.Status != "success" {
		return nil, errors.New(answer.Error)
	}
	return answer.Data.Result, nil
}

// up waits until all targets are up, and wants so many of each job and path.
func (w *watched) up(want map[string]int) {
	w.Helper()
	w.Eventually("all targets to be up", func() error {
		targets, err := w.query("up == 1")
		if err != nil {
			return err
		}
		got := map[string]int{}
		for _, target := range targets {
			got[strings.TrimSpace(target.Metric["job"]+" "+target.Metric["metrics_path"])]++
		}
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return nil
		}
		return fmt.Errorf("up are %v, want %v: %s", got, want, w.faults())
	})
}

// faults returns why targets are down.
func (w *watched) faults() string {
	output, err := w.host.Command(w.Context(), "curl", "--silent", "http://127.0.0.1:"+port+"/api/v1/targets?state=active").Output()
	if err != nil {
		return err.Error()
	}
	var answer struct {
		Data struct {
			ActiveTargets []struct{ ScrapeURL, LastError string }
		}
	}
	if err := json.Unmarshal(output, &answer); err != nil {
		return err.Error()
	}
	var faults []string
	for _, target := range answer.Data.ActiveTargets {
		if target.LastError != "" {
			faults = append(faults, target.ScrapeURL+": "+target.LastError)
		}
	}
	return strings.Join(faults, "; ")
}

// once wants each metric of a host at one place, except for those that describe the process.
func (w *watched) once() {
	w.Helper()
	found, err := w.query(`count by (__name__, job, metrics_path, instance) ({__name__!~"up|scrape_.*|process_.*|go_goroutines", job!=""})`)
	if err != nil {
		w.Fatal(err)
	}
	places, sizes := map[string][]string{}, map[string]int{}
	for _, s := range found {
		host, _, _ := strings.Cut(s.Metric["instance"], ":")
		switch host {
		case "server-1":
			host = w.Server.Host.Address.String()
		case "agent-1":
			host = w.agent.Host.Address.String()
		}
		place := s.Metric["job"] + s.Metric["metrics_path"]
		places[host+" "+s.Metric["__name__"]] = append(places[host+" "+s.Metric["__name__"]], place)
		var count int
		_, _ = fmt.Sscan(fmt.Sprint(s.Value[1]), &count)
		sizes[host+" "+place] += count
	}
	for name, at := range places {
		if len(at) > 1 {
			w.Errorf("%s is at %v", name, at)
		}
	}
	w.Logf("%d metrics, series by place: %v", len(places), sizes)
	took, err := w.query("max by (job, metrics_path) (scrape_duration_seconds)")
	w.Logf("seconds that scrapes take: %v, %v", took, err)
}

// rules evaluates expressions of kube-prometheus' rules and dashboards. Those of alerts have no result.
func (w *watched) rules() {
	w.Helper()
	for _, job := range []string{"apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		// KubeAPIDown, KubeControllerManagerDown, KubeSchedulerDown, KubeletDown, KubeProxyDown.
		w.results(0, fmt.Sprintf(`absent(up{job=%q} == 1)`, job))
		w.results(1, fmt.Sprintf(`count(up{job=%q} == 1)`, job))
		w.results(1, fmt.Sprintf(`count(process_resident_memory_bytes{job=%q}) > 0`, job))
	}
	for _, alert := range []string{
		`count by (cluster) (count by (git_version, cluster) (label_replace(kubernetes_build_info{job!~"kube-dns|coredns"},"git_version","$1","git_version","(v[0-9]*.[0-9]*).*"))) > 1`,
		`etcd_server_has_leader{job=~".*etcd.*"} == 0`,
		`sum(up{job=~".*etcd.*"} == bool 1) without (instance) < ((count(up{job=~".*etcd.*"}) without (instance) + 1) / 2)`,
		`(etcd_mvcc_db_total_size_in_bytes{job=~".*etcd.*"} / etcd_server_quota_backend_bytes{job=~".*etcd.*"}) * 100 > 95`,
		`kubelet_certificate_manager_client_ttl_seconds < 86400`,
	} {
		w.results(0, alert)
	}
	for _, expression := range []string{
		`etcd_server_has_leader{job=~".*etcd.*"} == 1`,
		`count(scheduler_pending_pods{job="kube-scheduler"}) > 0`,
		`count(workqueue_queue_duration_seconds_bucket{job=~"kube-controller-manager"}) > 0`,
		`count(kubeproxy_sync_proxy_rules_duration_seconds_count{job="kube-proxy"}) == 2`,
		`count(kubelet_running_pods{job="kubelet", metrics_path="/metrics"}) == 2`,
		`count(container_cpu_usage_seconds_total{job="kubelet", metrics_path="/metrics/cadvisor", image!=""}) > 0`,
		`count(apiserver_request_total{job="apiserver"}) > 0`,
		`count(sum by (instance) (coredns_dns_requests_total{job="coredns"})) == 2`,
	} {
		w.results(1, expression)
	}
}

// results waits until an expression has so many results.
func (w *watched) results(want int, expression string) {
	w.Helper()
	w.Eventually(fmt.Sprintf("%d results of %s", want, expression), func() error {
		found, err := w.query(expression)
		if err == nil && len(found) != want {
			err = fmt.Errorf("there are %v", found)
		}
		return err
	})
}

// dashboard runs the queries of the dashboard. All have results, except for those of parts that the
// cluster does not use.
func (w *watched) dashboard() {
	w.Helper()
	var board struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(harness.Document(w, dashboard)), &board); err != nil {
		w.Fatal(err)
	}
	queries := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			queries++
			expression := strings.NewReplacer("$__rate_interval", "1m", "$datasource", "").Replace(target.Expr)
			if strings.Contains(expression, "kedge_network_policy_") {
				if _, err := w.query(expression); err != nil {
					w.Errorf("%s: %s: %v", panel.Title, target.Expr, err)
				}
				continue
			}
			w.Eventually("data for "+panel.Title, func() error {
				found, err := w.query(expression)
				if err == nil && len(found) == 0 {
					err = fmt.Errorf("%s has no result", expression)
				}
				return err
			})
		}
	}
	if queries < 10 {
		w.Errorf("%s has %d queries", dashboard, queries)
	}
}
