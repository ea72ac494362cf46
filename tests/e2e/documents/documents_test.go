// Package documents runs the commands of README.md and docs/ as printed, page by page, on one
// server. Blocks that cannot run there are marked: see internal/testutil/guide, and internal/cli,
// which requires a reason and a test for each.
package documents

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil/guide"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/scrape"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// The images that the pages run. There is no registry, so other images are preloaded under their names.
const (
	nginx      = "docker.io/library/nginx:1.28"
	prometheus = "quay.io/prometheus/prometheus:v3.5.0"
)

func TestDocuments(t *testing.T) {
	harness.Require(t)
	harness.Need(t, "e2fsprogs", "openssl", "curl")
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := guide.Pages(repository)
	if err != nil {
		t.Fatal(err)
	}
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	for name, build := range map[string]func(repository, name string) (string, error){nginx: image.StandIn, prometheus: image.Prometheus} {
		archive, err := build(repository, name)
		if err != nil {
			t.Fatalf("build image: %v", err)
		}
		host.Preload(archive)
	}
	server := host.StartServer(t)
	server.WaitReady()
	r := &reader{cluster.Of(t, server)}
	for _, page := range pages {
		t.Run(page.Name, func(t *testing.T) { r.in(t).read(page) })
	}
}

// reader follows the documents in a cluster.
type reader struct{ *cluster.Cluster }

// in returns the reader for a subtest.
func (r *reader) in(t *testing.T) *reader {
	return &reader{&cluster.Cluster{T: t, Server: r.Server, Client: r.Client}}
}

// read runs the blocks of a page in a folder of its own, from top to bottom. It stops at the first
// block that fails.
func (r *reader) read(page guide.Page) {
	r.Helper()
	blocks, err := page.Blocks()
	if err != nil {
		r.Fatal(err)
	}
	folder := r.Server.Host.Scratch(strings.ReplaceAll(page.Name, "/", "-"))
	if err := os.MkdirAll(filepath.Join(folder, "bin"), 0o755); err != nil {
		r.Fatal(err)
	}
	if err := os.Symlink(os.Getenv("KEDGE_BINARY"), filepath.Join(folder, "bin", "kedge")); err != nil {
		r.Fatal(err)
	}
	for _, block := range blocks {
		if block.Language != "sh" || block.NotRun != "" {
			continue
		}
		r.Logf("%s", block)
		if strings.Contains(block.Text, "create configmap prometheus ") {
			block.Text = r.withoutDiscovery(block.Text)
		}
		// The test is root already.
		script := "set -eo pipefail; cd " + folder + "; PATH=$PWD/bin:$PATH; sudo() { \"$@\"; }\n" + block.Text
		output, err := r.Server.Host.Command(r.Context(), "bash", "-c", script).CombinedOutput()
		if err != nil {
			r.Fatalf("%s: %v\n%s\n%s", block, err, block.Text, output)
		}
		for text, check := range map[string]func(*reader){
			"kedge certificate rotate\n":           (*reader).rotated,
			"rollout status deployment/web":        (*reader).web,
			"rollout status deployment/prometheus": (*reader).scraped,
		} {
			if strings.Contains(block.Text, text) {
				check(r)
			}
		}
	}
}

// rotated repeats a request to the kubelet, as the page says.
func (r *reader) rotated() {
	r.Helper()
	r.Eventually("the kubelet to answer through the API", func() error {
		_, err := r.Client.Discovery().RESTClient().Get().AbsPath("/api/v1/nodes/server-1/proxy/healthz").DoRaw(r.Context())
		return err
	})
}

// web opens the web page that README deploys.
func (r *reader) web() {
	r.Helper()
	url := "http://" + r.Server.Host.Address.String() + ":30080/"
	r.Eventually("an answer at "+url, func() error {
		output, err := r.Server.Host.Command(r.Context(), "curl", "-sf", "--max-time", "5", url).Output()
		if err == nil && !strings.Contains(string(output), "hostname=web-") {
			err = fmt.Errorf("it is %q", output)
		}
		return err
	})
}

// withoutDiscovery replaces the service discovery in a Prometheus configuration by the targets, because
// Debian's Prometheus has no discovery of Kubernetes.
func (r *reader) withoutDiscovery(text string) string {
	r.Helper()
	const begin, end = "<<'END'\n", "\nEND\n"
	before, rest, begun := strings.Cut(text, begin)
	configuration, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		r.Fatalf("no configuration in\n%s", text)
	}
	static, err := scrape.Static(r.Context(), r.Client, configuration)
	if err != nil {
		r.Fatal(err)
	}
	for _, kind := range []string{"nodes", "endpointslices.discovery.k8s.io", "services", "pods"} {
		r.Kubectl("auth", "can-i", "list", kind, "--all-namespaces", "--as=system:serviceaccount:monitoring:prometheus")
	}
	return before + begin + static + end + after
}

// scraped checks that Prometheus finds the server and its node by all of its jobs, and each metric at
// one of them. tests/e2e/prometheus looks closer.
func (r *reader) scraped() {
	r.Helper()
	r.Eventually("all targets to be scraped", func() error {
		up, err := r.query("up == 1")
		if err != nil {
			return err
		}
		var found []string
		for _, s := range up {
			found = append(found, s.Metric["job"]+s.Metric["metrics_path"])
		}
		slices.Sort(found)
		want := []string{
			"apiserver", "coredns/metrics/dns", "kube-controller-manager", "kube-proxy/metrics/proxy", "kube-scheduler",
			"kubelet/metrics", "kubelet/metrics/cadvisor", "kubelet/metrics/probes",
		}
		if !slices.Equal(found, want) {
			return fmt.Errorf("up are %v, want %v", found, want)
		}
		return nil
	})
	for name, job := range map[string]string{
		"kedge_datastore_size_bytes": "apiserver", "apiserver_request_total": "apiserver", "scheduler_schedule_attempts_total": "kube-scheduler",
		"workqueue_depth": "kube-controller-manager", "kubelet_node_name": "kubelet", "coredns_panics_total": "coredns",
	} {
		series, err := r.query(name)
		if err != nil || len(series) == 0 {
			r.Errorf("query %s: got %v, %v, want series", name, series, err)
		}
		for _, s := range series {
			if s.Metric["job"] != job {
				r.Errorf("%s: got the job %s, want %s", name, s.Metric["job"], job)
			}
		}
	}
}

type series struct {
	Metric map[string]string
	Value  [2]any
}

// query asks Prometheus through the API.
func (r *reader) query(expression string) ([]series, error) {
	text, err := r.Client.CoreV1().Services("monitoring").ProxyGet("http", "prometheus", "9090", "/api/v1/query", map[string]string{"query": expression}).DoRaw(r.Context())
	if err != nil {
		return nil, err
	}
	var answer struct{ Data struct{ Result []series } }
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("read the answer of Prometheus: %w", err)
	}
	return answer.Data.Result, nil
}
