package addons

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/registry"

	"github.com/kedge-dev/kedge/tests/harness/image"
)

// The user who may fetch charts.
const user, password = "reader", "of charts"

// chart returns the files of the chart web: a Deployment, a CustomResourceDefinition with an
// object, hooks, and a dependency.
func chart(version string) map[string]string {
	job := func(hook string) string {
		return fmt.Sprintf(`
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-%[1]s
  annotations: {helm.sh/hook: %[1]s, helm.sh/hook-delete-policy: before-hook-creation}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: %[2]q, args: [exit, {{ .Values.hook | quote }}]}]
`, hook, image.TestserverName)
	}
	return map[string]string{
		"Chart.yaml": fmt.Sprintf(`
apiVersion: v2
name: web
version: %s
appVersion: "7"
dependencies: [{name: sub, version: 0.1.0, repository: ""}]
`, version),
		"values.yaml": "greeting: hello\nextra: none\nhook: 0\nimage: " + image.TestserverName + "\n",
		"crds/gadgets.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  names: {kind: Gadget, plural: gadgets}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`,
		"templates/gadget.yaml": "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: {{ .Release.Name }}}\n",
		"templates/config.yaml": `
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {greeting: {{ .Values.greeting | quote }}, extra: {{ .Values.extra | quote }}, version: {{ .Chart.Version }}}
`,
		"templates/deployment.yaml": `
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  strategy: {type: Recreate}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: {{ .Values.image }}, imagePullPolicy: IfNotPresent, args: [sleep]}]
`,
		"templates/before.yaml": job("pre-install") + "---" + job("pre-upgrade"),
		"templates/NOTES.txt":   "{{ .Release.Name }} is there",
		"charts/sub/Chart.yaml": "apiVersion: v2\nname: sub\nversion: 0.1.0\n",
		"charts/sub/templates/config.yaml": `
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-sub}
data: {of: {{ .Values.of | default "sub" | quote }}}
`,
	}
}

// pack returns the archive of the chart.
func pack(t *testing.T, version string) []byte {
	t.Helper()
	var files []*archive.BufferedFile
	for name, text := range chart(version) {
		files = append(files, &archive.BufferedFile{Name: name, Data: []byte(text)})
	}
	loaded, err := loader.LoadFiles(files)
	if err != nil {
		t.Fatal(err)
	}
	path, err := chartutil.Save(loaded, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// unpacked writes the chart into a folder on the server.
func (s *scenario) unpacked(folder, version string) {
	s.Helper()
	for name, text := range chart(version) {
		s.Server.Host.WriteFile(filepath.Join(folder, name), text)
	}
}

// charts serves charts as a repository and as a read-only registry. Each requires a password.
func charts(archives map[string][]byte) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /repo/index.yaml", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "apiVersion: v1\nentries:\n  web:\n")
		for version := range archives {
			fmt.Fprintf(w, "  - {apiVersion: v2, name: web, version: %[1]s, urls: [web-%[1]s.tgz]}\n", version)
		}
	})
	blobs := map[string][]byte{}
	add := func(data []byte) map[string]any {
		sum := sha256.Sum256(data)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		blobs[digest] = data
		return map[string]any{"digest": digest, "size": len(data)}
	}
	serve := func(path, kind string, data []byte) {
		sum := sha256.Sum256(data)
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Header().Set("Docker-Content-Digest", "sha256:"+hex.EncodeToString(sum[:]))
			_, _ = w.Write(data)
		})
	}
	var tags []string
	for version, data := range archives {
		serve("/repo/web-"+version+".tgz", "application/gzip", data)
		config, layer := add([]byte(`{"name":"web","version":"`+version+`","apiVersion":"v2"}`)), add(data)
		config["mediaType"], layer["mediaType"] = registry.ConfigMediaType, registry.ChartLayerMediaType
		const kind = "application/vnd.oci.image.manifest.v1+json"
		manifest, _ := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind, "config": config, "layers": []any{layer}})
		serve("/v2/charts/web/manifests/"+version, kind, manifest)
		serve("/v2/charts/web/manifests/"+add(manifest)["digest"].(string), kind, manifest)
		tags = append(tags, version)
	}
	for digest, data := range blobs {
		serve("/v2/charts/web/blobs/"+digest, "application/octet-stream", data)
	}
	list, _ := json.Marshal(map[string]any{"name": "charts/web", "tags": tags})
	serve("/v2/charts/web/tags/list", "application/json", list)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, given, _ := r.BasicAuth()
		if name != user || subtle.ConstantTimeCompare([]byte(given), []byte(password)) == 0 {
			w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// secrets returns the Secrets with the passwords, for a HelmChart.
func secrets(address string) string {
	docker := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, address, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: basic, namespace: kube-system}
type: kubernetes.io/basic-auth
stringData: {username: %q, password: %q}
---
apiVersion: v1
kind: Secret
metadata: {name: docker, namespace: kube-system}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: %q}
`, user, password, docker)
}
