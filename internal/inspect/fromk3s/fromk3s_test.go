package fromk3s

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"

	"github.com/kedge-dev/kedge/internal/base/k3shost"
)

// install writes files of an installation, by their paths below its root.
func install(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// want looks for a finding: its result, a part of its source, its name and a part of what
// it says.
func want(t *testing.T, found []Finding, result Result, source, name, says string) {
	t.Helper()
	if !slices.ContainsFunc(found, func(f Finding) bool {
		return f.Result == result && strings.Contains(f.Source, source) && f.Name == name && strings.Contains(f.Says, says)
	}) {
		t.Errorf("no %s of %s in %s with %q in\n%+v", result, name, source, says, found)
	}
}

func TestLook(t *testing.T) {
	root := install(t, map[string]string{
		"etc/rancher/k3s/config.yaml":            "node-name: one\netcd-s3: true\nvpn-auth: name=tailscale,joinKey=hush\nhttps-listen-prt: 1\nflannel-backend: udp\n",
		"etc/rancher/k3s/config.yaml.d/10.yml":   "tls-san+: [k3s.example.com]\npause-image: x\n",
		"etc/rancher/k3s/registries.yaml":        "mirrors: {docker.io: {endpoint: [https://mirror.example.com]}}\n",
		"etc/systemd/system/k3s.service":         "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--disable' \\\n\t'traefik' \\\n\t'-t=hush' --docker \\\n\n",
		"etc/systemd/system/k3s.service.env":     "K3S_KUBECONFIG_MODE='644'\nHTTPS_PROXY=http://proxy\n",
		"etc/systemd/system/k3s.service.d/a":     "",
		manifests("coredns.yaml"):                "kind: x",
		manifests("metrics-server/rbac.yaml"):    "kind: x",
		manifests("off.yaml"):                    "kind: x",
		manifests("off.yaml.skip"):               "",
		manifests("deep/mine.yaml"):              "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: apps}\n---\napiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: p}\n",
		manifests("broken.yaml"):                 "a: [\n",
		manifests("traefik-config.yaml"):         "apiVersion: helm.cattle.io/v1\nkind: HelmChartConfig\nmetadata: {name: traefik, namespace: kube-system}\n",
		manifests("notes.txt"):                   "not a manifest",
		"var/lib/rancher/k3s/server/db/state.db": "",

		"var/lib/rancher/k3s/agent/etc/kubelet.conf.d/50-mine.conf": "kind: KubeletConfiguration\n",
	})
	found, err := Look(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	const config = "/etc/rancher/k3s/config.yaml"
	want(t, found, Works, config+":1", "node-name", "")
	want(t, found, Changes, config+":2", "etcd-s3", "kedge's is s3")
	want(t, found, Cannot, config+":3", "vpn-auth", "run the VPN on the host")
	want(t, found, Cannot, config+":4", "https-listen-prt", "did you mean https-listen-port?")
	want(t, found, Cannot, config+":5", "flannel-backend", "use one of vxlan")
	want(t, found, Works, config+".d/10.yml:1", "tls-san", "")
	want(t, found, Changes, config+".d/10.yml:2", "pause-image", "part of the executable")
	want(t, found, Works, "/etc/rancher/k3s/registries.yaml", "registries.yaml", "Copy")
	want(t, found, Changes, "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d/50-mine.conf", "50-mine.conf", "config-dir=")
	const unit = "/etc/systemd/system/k3s.service"
	want(t, found, Works, unit, "disable", "")
	want(t, found, Works, unit, "token", "")
	want(t, found, Cannot, unit, "docker", "cri-dockerd")
	want(t, found, Changes, unit+".env", "K3S_KUBECONFIG_MODE", "KEDGE_WRITE_KUBECONFIG_MODE")
	want(t, found, Changes, unit+".d", "k3s", "kedge.service.d")
	want(t, found, Changes, "manifests/coredns.yaml", "coredns", "leave it out")
	want(t, found, Changes, "metrics-server/rbac.yaml", "metrics-server", "leave it out")
	want(t, found, Works, "manifests/off.yaml", "", "skipped")
	want(t, found, Works, "deep/mine.yaml", "ConfigMap apps/c", "")
	want(t, found, Cannot, "deep/mine.yaml", "PodDisruptionBudget p", "policy/v1.")
	want(t, found, Cannot, "broken.yaml", "", "not a manifest")
	want(t, found, Changes, "traefik-config.yaml", "HelmChartConfig kube-system/traefik", "no effect")
	want(t, found, Changes, "/var/lib/rancher/k3s/server/db/state.db", "SQLite", "empty cluster")
	if Worst(found) != Cannot {
		t.Errorf("the worst is %s", Worst(found))
	}
	for _, f := range found {
		if strings.Contains(f.Source+f.Says, "hush") || strings.Contains(f.Source+f.Says, root) {
			t.Errorf("a secret or the root is in %+v", f)
		}
	}
	inside, err := Look(t.Context(), root+k3shost.ConfigFolder, nil)
	if err != nil || len(inside) != len(found) {
		t.Errorf("from inside: %d findings, not %d: %v", len(inside), len(found), err)
	}
}

func manifests(name string) string { return "var/lib/rancher/k3s/server/manifests/" + name }

func TestLookAtNothing(t *testing.T) {
	if _, err := Look(t.Context(), t.TempDir(), nil); err == nil || !strings.Contains(err.Error(), "no k3s in") {
		t.Errorf("got %v", err)
	}
}

// TestAgentOfOpenRC reads a script and its environment.
func TestAgentOfOpenRC(t *testing.T) {
	root := install(t, map[string]string{
		"etc/init.d/k3s-agent":                               "#!/sbin/openrc-run\ncommand_args=\"agent \\\n    --node-label a \\\n    >>/var/log/k3s.log 2>&1\"\n",
		"etc/rancher/k3s/k3s-agent.env":                      "export K3S_URL=https://192.0.2.1:6443\nexport K3S_TOKEN=hush\n",
		"var/lib/rancher/k3s/agent/k3scontroller.kubeconfig": "",
	})
	found, err := Look(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, found, Changes, "/etc/rancher/k3s/k3s-agent.env", "K3S_URL", "KEDGE_URL")
	want(t, found, Changes, "/etc/rancher/k3s/k3s-agent.env", "token", "kedge token create")
	if !slices.ContainsFunc(found, func(f Finding) bool { return f.Name == "node-label" && f.Source == "/etc/init.d/k3s-agent" }) {
		t.Errorf("no node-label in %+v", found)
	}
}

// TestCluster judges objects of a cluster, which does not have all kinds.
func TestCluster(t *testing.T) {
	kinds := map[schema.GroupVersionResource]string{}
	for _, kind := range judged {
		kinds[kind] = "List"
	}
	object := func(version, kind, name string, spec map[string]any) runtime.Object {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind}}
		object.SetName(name)
		for key, value := range spec {
			object.Object[key] = value
		}
		return object
	}
	i := &installation{}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds,
		object("networking.k8s.io/v1", "Ingress", "web", map[string]any{"spec": map[string]any{"ingressClassName": "traefik"}}),
		object("traefik.io/v1alpha1", "IngressRoute", "web", nil),
		object("storage.k8s.io/v1", "StorageClass", "fast", map[string]any{"provisioner": "rancher.io/local-path"}),
		object("storage.k8s.io/v1", "StorageClass", "pattern", map[string]any{"provisioner": "rancher.io/local-path", "parameters": map[string]any{"pathPattern": "x"}}),
		object("storage.k8s.io/v1", "StorageClass", "other", map[string]any{"provisioner": "nfs"}),
		object("upgrade.cattle.io/v1", "Plan", "all", nil),
	)
	// The client would guess another name for the resource.
	gateway := object("gateway.networking.k8s.io/v1", "Gateway", "web", map[string]any{"spec": map[string]any{"gatewayClassName": "traefik"}})
	if err := client.Tracker().Create(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}, gateway, ""); err != nil {
		t.Fatal(err)
	}
	if err := i.clusterOf(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	want(t, i.found, Changes, "cluster", "Ingress web", "gateway-ingress-classes: traefik")
	want(t, i.found, Changes, "cluster", "Gateway web", "gatewayClassName: kedge")
	want(t, i.found, Cannot, "cluster", "IngressRoute web", "does not serve kinds of Traefik")
	want(t, i.found, Works, "cluster", "StorageClass fast", "")
	want(t, i.found, Works, "cluster", "StorageClass other", "")
	want(t, i.found, Cannot, "cluster", "StorageClass pattern", "without pathPattern")
	want(t, i.found, Changes, "cluster", "Plan all", "Plans of its own")
}

// TestIngresses judges Ingresses by their classes and annotations.
func TestIngresses(t *testing.T) {
	const middleware = "traefik.ingress.kubernetes.io/router.middlewares"
	for name, test := range map[string]struct {
		class, annotation string
		noGateway         bool
		want              Result
		says              string
	}{
		"without a class":         {"", "", false, Works, ""},
		"of kedge":                {"kedge", "", false, Works, ""},
		"of another controller":   {"nginx", "nginx.ingress.kubernetes.io/x", false, Works, ""},
		"of Traefik":              {"traefik", "", false, Changes, "Set gateway-ingress-classes: traefik"},
		"with annotations":        {"", middleware, false, Changes, "The gateway ignores " + middleware},
		"with both":               {"traefik", middleware, false, Changes, "The gateway ignores " + middleware},
		"where Traefik is absent": {"traefik", middleware, true, Works, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ingress := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
				"spec": map[string]any{"ingressClassName": test.class},
			}}
			if test.annotation != "" {
				ingress.SetAnnotations(map[string]string{test.annotation: "x"})
			}
			i := &installation{noGateway: test.noGateway}
			if got, says := i.judge(ingress); got != test.want || !strings.Contains(says, test.says) {
				t.Errorf("got %s, %q", got, says)
			}
		})
	}
}
