package helm

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/yaml"
)

// object parses the YAML of an object in the API.
func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	o := &unstructured.Unstructured{}
	if err == nil {
		err = o.UnmarshalJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestDecode reads HelmCharts that people wrote for k3s.
func TestDecode(t *testing.T) {
	const text = `
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: grafana, namespace: kube-system, generation: 2}
spec:
  chart: stable/grafana
  targetNamespace: monitoring
  set: {adminPassword: "NotVerySafePassword", replicas: 2}
  valuesContent: |-
    image: {tag: master}
  bootstrap: true
  helmVersion: v3
  jobImage: rancher/klipper-helm
  backOffLimit: 3
  timeout: 10m
  authSecret: {name: credentials}
  securityContext: {runAsUser: 1}
  values: {a: {b: 1}}
status: {jobName: helm-install-grafana}
`
	chart, err := decode[helmChart](object(t, text))
	if err == nil || !runtime.IsStrictDecodingError(err) || !strings.Contains(err.Error(), "status.jobName") || strings.Contains(err.Error(), "spec") {
		t.Errorf("got error %v, want one about the unknown field status.jobName only", err)
	}
	if chart.namespace() != "monitoring" || chart.Spec.Set["replicas"].IntVal != 2 || chart.Spec.timeout().Minutes() != 10 ||
		chart.Spec.ValuesContent == "" || chart.Spec.Values["a"] == nil || chart.Spec.AuthSecret.Name != "credentials" {
		t.Errorf("read %+v", chart)
	}
	_, err = decode[helmChart](object(t, strings.Replace(text, "valuesContent", "valueContent", 1)))
	if err == nil || !strings.Contains(err.Error(), "spec.valueContent") {
		t.Errorf("a wrong name is %v", err)
	}
	if _, err = decode[helmChart](object(t, strings.Replace(text, "timeout: 10m", "timeout: [1]", 1))); err == nil || runtime.IsStrictDecodingError(err) {
		t.Errorf("a wrong value is %v", err)
	}
}

// TestMerged sets values in every possible place, and checks which of them win.
func TestMerged(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "more"}, Data: map[string][]byte{"first": []byte("secret: 1\norder: secret")}}
	c := &controller{api: fake.NewClientset(secret)}
	chart, err := decode[helmChart](object(t, `
apiVersion: helm.cattle.io/v1
kind: HelmChart
metadata: {name: web, namespace: kube-system}
spec:
  valuesContent: "{content: 1, order: content, deep: {content: 1}}"
  valuesSecrets: [{name: more, keys: [first]}, {name: none, keys: [a], ignoreUpdates: true}]
  values: {values: 1, deep: {values: 1}, replaced: chart}
  set: {number: 1, text: "1", truth: "true", list: "a,b", deep.set: x, order: "1"}
`))
	if err != nil {
		t.Fatal(err)
	}
	config := &helmChartConfig{Spec: Overrides{ValuesContent: "replaced: config"}}
	got, err := c.merged(t.Context(), chart, config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var plain, want map[string]any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(`{content: 1, secret: 1, values: 1, order: "1", number: 1, text: "1", truth: true, list: "a,b",
		deep: {content: 1, values: 1, set: x}, replaced: config}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(plain, want) {
		t.Errorf("got %v, want %v", plain, want)
	}
	for name, fault := range map[string]Overrides{
		"not found":         {ValuesSecrets: []secretValues{{Name: "none", Keys: []string{"a"}}}},
		"has no key second": {ValuesSecrets: []secretValues{{Name: "more", Keys: []string{"second"}}}},
		"read values":       {ValuesContent: "[a"},
	} {
		if _, err := c.merged(t.Context(), chart, &helmChartConfig{Spec: fault}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "HelmChartConfig") {
			t.Errorf("got error %v, want one with %q and HelmChartConfig", err, name)
		}
	}
}

func TestLocalPath(t *testing.T) {
	c := &controller{Config: Config{Charts: "/charts"}}
	for chart, want := range map[string]string{
		"web":               "/charts/web",
		"web-1.0.0.tgz":     "/charts/web-1.0.0.tgz",
		k3sStatic + "a.tgz": "/charts/a.tgz",
		"oci://registry/a":  "",
		"https://host/a":    "",
		"../tls":            "error",
		"/etc":              "error",
		"":                  "error",
		k3sStatic + "../a":  "error",
	} {
		got, err := c.localPath(&chartSpec{Chart: chart})
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q is at %q, want %q", chart, got, want)
		}
	}
	for _, spec := range []chartSpec{{Chart: "web", Repo: "https://host"}, {ChartContent: "x"}} {
		if got, err := c.localPath(&spec); err != nil || got != "" {
			t.Errorf("%+v is at %q: %v", spec, got, err)
		}
	}
}

// TestDigest wants another digest when a chart changes, and an error for a chart
// that has other things than files.
func TestDigest(t *testing.T) {
	c := &controller{Config: Config{Charts: t.TempDir()}}
	spec := &chartSpec{Chart: "web"}
	seen := map[string]bool{}
	differs := func(want string) {
		t.Helper()
		digest, err := c.digest(spec)
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %q, %v, want %s", digest, err, want)
		} else if want == "" && (err != nil || seen[digest]) {
			t.Errorf("got %q, %v after %v", digest, err, seen)
		}
		seen[digest] = true
	}
	differs("")
	chart := filepath.Join(c.Charts, "web")
	if err := os.MkdirAll(filepath.Join(chart, "templates"), 0o700); err != nil {
		t.Fatal(err)
	}
	differs("")
	for _, content := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(chart, "Chart.yaml"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		differs("")
	}
	if err := syscall.Mkfifo(filepath.Join(chart, "templates", "web.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	differs("templates/web.yaml: this is a FIFO")
	if err := syscall.Mkfifo(filepath.Join(c.Charts, "web.tgz"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec.Chart = "web.tgz"
	differs("web.tgz: this is a FIFO")
}

// TestFetchFaults makes faults in charts and in the places that they come from.
func TestFetchFaults(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good/index.yaml":
			_, _ = w.Write([]byte("apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 1.0.0, urls: [web.tgz]}]}"))
		case "/bad/index.yaml":
			_, _ = w.Write([]byte("<html>"))
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	c := &controller{Config: Config{Charts: t.TempDir(), Server: "server-1"}, api: fake.NewClientset()}
	for want, spec := range map[string]chartSpec{
		"there is no chart " + filepath.Join(c.Charts, "web"): {Chart: "web"},
		"not base64":                         {ChartContent: "-"},
		"get chart":                          {ChartContent: base64.StdEncoding.EncodeToString([]byte("no archive"))},
		"404":                                {Chart: server.URL + "/none.tgz"},
		"repo " + server.URL + "/none: ":     {Chart: "web", Repo: server.URL + "/none"},
		"index.yaml":                         {Chart: "web", Repo: server.URL + "/bad"},
		"has no chart other":                 {Chart: "other", Repo: server.URL + "/good"},
		`no chart web of version "2"`:        {Chart: "web", Version: "2", Repo: server.URL + "/good"},
		"authSecret: ":                       {Chart: "web", Repo: server.URL, AuthSecret: &corev1.LocalObjectReference{Name: "none"}},
		"repoCAConfigMap: ":                  {Chart: "web", Repo: server.URL, RepoCAConfigMap: &corev1.LocalObjectReference{Name: "none"}},
		"no certificate in PEM":              {Chart: "web", Repo: server.URL, RepoCA: "none"},
		"dockerRegistrySecret: ":             {Chart: "oci://registry/web", DockerRegistrySecret: &corev1.LocalObjectReference{Name: "none"}},
		"oci://" + server.URL[7:] + "/a/web": {Chart: "oci://" + server.URL[7:] + "/a/web", Version: "1.0.0", PlainHTTP: true},
	} {
		_, err := c.fetch(t.Context(), &helmChart{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system"}, Spec: spec})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", spec, err, want)
		}
	}
	withUser := "http://me:hush@" + server.URL[len("http://"):]
	for _, spec := range []chartSpec{{Chart: "web", Repo: withUser + "/none"}, {Chart: withUser + "/none.tgz"}} {
		_, err := c.fetch(t.Context(), &helmChart{Spec: spec})
		if err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), server.URL) {
			t.Errorf("fetch %+v: got error %v, want one with the address and without the password", spec, err)
		}
	}
}

// TestChangingOrder has an API that lists the same faults in another order each time.
func TestChangingOrder(t *testing.T) {
	client := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &unstructured.Unstructured{}, nil
	})
	told := record.NewFakeRecorder(10)
	c := &controller{client: client, events: told, log: logrus.WithField("component", "test")}
	is := object(t, "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: web, namespace: kube-system, generation: 3}\n")
	chart := &helmChart{}
	for _, message := range []string{"[a is wrong, b is missing]", "[b is missing, a is wrong]", "[b is wrong, a is missing]", "[a is wrong]"} {
		_ = c.fail(t.Context(), chart, is, &fault{"InstallFailed", errors.New(message), false})
	}
	for i, want := range []string{"[a is wrong, b is missing]", "[a is wrong, b is missing]", "[b is wrong, a is missing]", "[a is wrong]"} {
		if got := <-told.Events; !strings.HasSuffix(got, want) {
			t.Errorf("Event %d is %q, want %q", i, got, want)
		}
	}
}
