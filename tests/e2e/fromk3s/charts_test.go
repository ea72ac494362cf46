package fromk3s

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"strings"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"

	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// chart returns the archive of a chart called traefik, which stands in for Traefik's: a Deployment, and the
// kinds of Traefik.
func (s *scenario) chart(version string) []byte {
	s.Helper()
	var files []*archive.BufferedFile
	for name, text := range map[string]string{
		"Chart.yaml":  "apiVersion: v2\nname: traefik\nversion: " + version + "\n",
		"values.yaml": "replicas: 1\nlevel: of the chart\nports: {web: {port: 80}}\nimage: " + image.TestserverName + "\n",
		"crds/ingressroutes.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ingressroutes.traefik.io}
spec:
  group: traefik.io
  names: {kind: IngressRoute, plural: ingressroutes}
  scope: Namespaced
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`,
		"templates/config.yaml": `
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {level: {{ .Values.level | quote }}, port: {{ .Values.ports.web.port | quote }}, version: {{ .Chart.Version }}}
`,
		"templates/deployment.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  replicas: {{ .Values.replicas }}
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: {{ .Values.image }}, imagePullPolicy: IfNotPresent, args: [sleep]}]
`,
	} {
		files = append(files, &archive.BufferedFile{Name: name, Data: []byte(text)})
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		s.Fatal(err)
	}
	path, err := chartutil.Save(loaded, s.TempDir())
	if err != nil {
		s.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		s.Fatal(err)
	}
	return data
}

// repository serves charts as a repository.
func repository(archives map[string][]byte) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /index.yaml", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "apiVersion: v1\nentries:\n  traefik:\n")
		for version := range archives {
			fmt.Fprintf(w, "  - {apiVersion: v2, name: traefik, version: %[1]s, urls: [traefik-%[1]s.tgz]}\n", version)
		}
	})
	for version, data := range archives {
		mux.HandleFunc("GET /traefik-"+version+".tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	}
	return mux
}

// release waits until the ConfigMap of a release has these data.
func (s *scenario) release(namespace, name, level, port, version string) {
	s.Helper()
	s.has([]string{level + "," + port + "," + version}, "configmap", name, "--namespace="+namespace, "-o", "jsonpath={.data.level},{.data.port},{.data.version}")
}

// install installs charts as k3s's documentation shows it, from a repository and from the object itself.
func (s *scenario) install() {
	first := s.chart("1.0.0")
	address := s.serveCharts(repository(map[string][]byte{"1.0.0": first, "2.0.0": s.chart("2.0.0")}))

	s.Log("a HelmChart in the manifests folder, with valuesContent and set")
	s.write("ingress/traefik-chart.yaml", fmt.Sprintf(`
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: traefik, namespace: kube-system}
spec:
  repo: %s
  chart: traefik
  version: 1.0.0
  targetNamespace: ingress
  createNamespace: true
  bootstrap: false
  jobImage: rancher/klipper-helm:v0.9
  backOffLimit: 10
  set:
    ports.web.port: "8000"
  valuesContent: |-
    level: of the HelmChart
`, address))
	s.release("ingress", "traefik", "of the HelmChart", "8000", "1.0.0")
	s.Kubectl("rollout", "status", "deployment/traefik", "--namespace=ingress", "--timeout=2m")
	s.has([]string{"False"}, "helmchart", "traefik", "--namespace=kube-system", "-o", `jsonpath={.status.conditions[?(@.type=="Failed")].status}`)

	s.Log("a HelmChartConfig adds to it, and another version upgrades it")
	s.write("traefik-config.yaml", `
apiVersion: helm.cattle.io/v1
kind: HelmChartConfig
metadata: {name: traefik, namespace: kube-system}
spec:
  valuesContent: |-
    level: of the HelmChartConfig
    replicas: 2
`)
	s.release("ingress", "traefik", "of the HelmChartConfig", "8000", "1.0.0")
	s.has([]string{"2"}, "deployment", "traefik", "--namespace=ingress", "-o", "jsonpath={.status.readyReplicas}")
	s.Kubectl("patch", "helmchart", "traefik", "--namespace=kube-system", "--type=merge", "--patch", `{"spec": {"version": "2.0.0"}}`)
	s.release("ingress", "traefik", "of the HelmChartConfig", "8000", "2.0.0")

	s.Log("a chart in the object itself, in another namespace")
	inline := fmt.Sprintf(`
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: inline, namespace: kube-system}
spec:
  targetNamespace: %s
  chartContent: %s
  valuesContent: "level: inline"
`, cluster.Namespace, base64.StdEncoding.EncodeToString(first))
	if _, err := s.TryKubectl(inline, "apply", "--namespace=kube-system", "-f", "-"); err != nil {
		s.Fatal(err)
	}
	s.release(cluster.Namespace, "inline", "inline", "80", "1.0.0")

	s.Log("a deleted HelmChart uninstalls its release, and keeps the namespace and the kinds, as Helm does")
	s.Kubectl("delete", "helmchart", "inline", "--namespace=kube-system", "--timeout=1m")
	s.value(cluster.Namespace, "inline", "")
	if left := s.Kubectl("get", "deployments", "-o", "name"); strings.Contains(left, "inline") {
		s.Errorf("the release left %s", left)
	}
	s.drop("ingress/traefik-chart.yaml")
	s.Kubectl("wait", "--for=delete", "--timeout=1m", "helmchart/traefik", "--namespace=kube-system")
	s.value("ingress", "traefik", "")
	s.Kubectl("get", "namespace/ingress", "customresourcedefinition/ingressroutes.traefik.io")
}
