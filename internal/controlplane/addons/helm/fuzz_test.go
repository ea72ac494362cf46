package helm

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/getter"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
)

// archived returns a tar archive of files: NAME, CONTENT, ...
func archived(t testing.TB, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o600, Size: int64(len(files[i+1])), Typeflag: tar.TypeReg})
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func compressed(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// fetched fetches a chart that is in a HelmChart itself. The chart is refused, or it
// has a sensible size and its files have distinct names.
func fetched(t *testing.T, archive []byte) {
	t.Helper()
	c := &controller{Config: Config{Charts: "/nowhere", Server: "server-1"}}
	spec := chartSpec{ChartContent: base64.StdEncoding.EncodeToString(archive)}
	chart, err := c.fetch(t.Context(), &helmChart{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system"}, Spec: spec})
	if err != nil {
		return
	}
	if chart.Name() == "" || chart.Name() != filepath.Base(chart.Name()) {
		t.Errorf("the chart is called %q", chart.Name())
	}
	if size := size(t, chart); size > maxChart {
		t.Errorf("the chart has %d bytes", size)
	}
}

// size returns the size of a chart, with the charts that it depends on.
func size(t *testing.T, chart *chartv2.Chart) int {
	sum := 0
	for _, file := range chart.Raw {
		sum += len(file.Data)
		if !filepath.IsLocal(file.Name) {
			t.Errorf("the chart has a file %q", file.Name)
		}
	}
	for _, dependency := range chart.Dependencies() {
		sum += size(t, dependency)
	}
	return sum
}

const goodChart = "apiVersion: v2\nname: web\nversion: 1.0.0\n"

// FuzzChart fetches an arbitrary archive.
func FuzzChart(f *testing.F) {
	nested := compressed(f, archived(f, "sub/Chart.yaml", strings.ReplaceAll(goodChart, "web", "sub")))
	f.Add(archived(f, "web/Chart.yaml", goodChart, "web/values.yaml", "a: 1\n", "web/templates/a.yaml", "kind: {{ .Values.a }}\n"))
	f.Add(archived(f, "web/Chart.yaml", goodChart+"dependencies: [{name: sub, version: 1.0.0}]\n", "web/charts/sub.tgz", string(nested)))
	f.Add(archived(f, "web/Chart.yaml", goodChart, "web/../../etc/passwd", "x"))
	f.Add(archived(f, "Chart.yaml", goodChart))
	f.Add(archived(f, `web\Chart.yaml`, goodChart, `web\charts\_a`, "x"))
	f.Fuzz(func(t *testing.T, archive []byte) { fetched(t, compressed(t, archive)) })
}

// FuzzChartFiles fetches charts with arbitrary content in the files that the loader
// reads.
func FuzzChartFiles(f *testing.F) {
	f.Add("values.yaml", goodChart, "a: 1\n---\nb: [null]\n")
	f.Add("charts/sub/Chart.yaml", goodChart+"dependencies:\n- name: sub\n  version: 1.0.0\n- null\n", goodChart)
	f.Add("requirements.yaml", "name: web\nversion: 1.0.0\n", "dependencies: [null, {name: a, alias: \"../b\"}]\n")
	f.Add("Chart.lock", goodChart+"maintainers: [null]\ntype: library\n", "dependencies: {}\n")
	f.Add("requirements.lock", goodChart+"annotations: {a: 1}\n", "null\n")
	f.Add("charts/sub.tgz", goodChart+"sources: [null]\n", "no archive")
	f.Add("values.schema.json", goodChart, `{"$ref":"file:///etc/passwd"}`)
	f.Fuzz(func(t *testing.T, name, chart, content string) {
		if name == "" || strings.HasSuffix(name, "/") || strings.ContainsRune(name, 0) || !utf8.ValidString(name) || len(name) > 90 {
			return // a tar archive cannot contain such a name
		}
		fetched(t, compressed(t, archived(t, "web/Chart.yaml", chart, "web/"+name, content)))
	})
}

// repository answers with an index.
type repository string

func (r repository) Get(string, ...getter.Option) (*bytes.Buffer, error) {
	return bytes.NewBufferString(string(r)), nil
}

// FuzzIndex looks for a chart in an arbitrary repository. If a chart is found, its
// address must be valid.
func FuzzIndex(f *testing.F) {
	for _, index := range []string{
		"apiVersion: v1\nentries: {web: [{apiVersion: v2, name: web, version: 1.0.0, urls: [web.tgz]}]}\n",
		"apiVersion: v1\nentries: {web: [null, {name: web, version: 1.0.0, urls: []}]}\n",
		"apiVersion: v1\nentries: {web: [{name: web, version: x, urls: [\"file:///etc/passwd\"]}, {version: 2.0.0, urls: [\"\"]}]}\n",
		"apiVersion: v1\nentries: {web: null}\n",
		`{"apiVersion":"v1","entries":{"web":[{"name":"web","version":"1.0.0","urls":["http://other.test/%zz"]}]}}`,
		"<html>",
	} {
		f.Add(index, "")
		f.Add(index, ">0-0")
	}
	f.Fuzz(func(t *testing.T, index, version string) {
		address, err := find(repository(index), &chartSpec{Chart: "web", Version: version, Repo: "https://repo.test/a"})
		if err != nil {
			return
		}
		if u, err := url.Parse(address); err != nil || !u.IsAbs() {
			t.Errorf("the chart is at %q: %v", address, err)
		}
	})
}

// FuzzValues merges arbitrary values. It must be possible to encode the result.
func FuzzValues(f *testing.F) {
	f.Add("a: {b: 1}\n", "a.b", "2")
	f.Add("a: [1]\n", "a[3].b", "x,y")
	f.Add("a: &a {b: c}\nd: {<<: *a}\n", "a[-1]", "null")
	f.Add("a: null\n", "a[65536]", "{x,y}")
	f.Add("1: {true: 2}\n", `a\.b[0][1]`, "true")
	f.Add("", "a=b,c", "\\")
	c := &controller{api: fake.NewClientset()}
	f.Fuzz(func(t *testing.T, content, key, value string) {
		chart := &helmChart{Spec: chartSpec{Overrides: Overrides{ValuesContent: content}, Set: map[string]intstr.IntOrString{key: intstr.FromString(value)}}}
		values, err := c.merged(t.Context(), chart, &helmChartConfig{})
		if err != nil {
			return
		}
		text, err := json.Marshal(values)
		if err != nil {
			t.Errorf("%v cannot be written down: %v", values, err)
		}
		if len(text) > 1<<20+100*(len(content)+len(key)+len(value)) {
			t.Errorf("%q, %q and %q are %d bytes", content, key, value, len(text))
		}
	})
}

// FuzzHelmChart reads an arbitrary object as a HelmChart, and finds where its chart
// is: in the server's folder, or nowhere on the disk.
func FuzzHelmChart(f *testing.F) {
	for _, object := range []string{
		`{"apiVersion":"helm.cattle.io/v1","kind":"HelmChart","metadata":{"name":"web","namespace":"kube-system"},"spec":{"chart":"web","timeout":"10m","set":{"a":1}}}`,
		`{"spec":{"chart":"` + k3sStatic + `../../tls/a","values":{"a":null}},"status":{"conditions":[null]}}`,
		`{"metadata":{"namespace":1},"spec":{"timeout":[1],"set":{"a":{}},"valuesSecrets":[null]}}`,
		`{"spec":null,"status":[]}`,
	} {
		f.Add([]byte(object))
	}
	c := &controller{Config: Config{Charts: "/charts"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		object := &unstructured.Unstructured{}
		if json.Unmarshal(text, &object.Object) != nil || object.Object == nil {
			return
		}
		chart, err := decode[helmChart](object)
		if err != nil {
			return
		}
		_ = chart.namespace()
		_ = chart.Spec.timeout()
		path, err := c.localPath(&chart.Spec)
		if err == nil && path != "" && path != "/charts" && !strings.HasPrefix(path, "/charts/") {
			t.Errorf("%s is at %s", text, path)
		}
		if _, err := json.Marshal(chart); err != nil {
			t.Errorf("%s cannot be written: %v", text, err)
		}
	})
}

// sparse is an archive with a file that is one hole.
func sparse(t *testing.T, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "sub/hole", Mode: 0o600, Typeflag: tar.TypeReg, Format: tar.FormatGNU}), w.Close()); err != nil {
		t.Fatal(err)
	}
	// GNU's header of old: the kind, the only piece of data, which is empty and at the
	// end, and the size (https://www.gnu.org/software/tar/manual/html_node/Standard.html).
	header := out.Bytes()[:512]
	header[156] = tar.TypeGNUSparse
	copy(header[386:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	copy(header[483:], fmt.Sprintf("%011o\x00", size))
	copy(header[148:], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
	return compressed(t, out.Bytes())
}

// TestCheckSize wants charts to be refused that are small only while they are
// compressed.
func TestCheckSize(t *testing.T) {
	large := compressed(t, archived(t, "sub/large", strings.Repeat("x", maxChart/2)))
	deep := []byte("the innermost")
	for range maxNested {
		deep = compressed(t, archived(t, "web/charts/sub.tgz", string(deep)))
	}
	for name, test := range map[string]struct {
		archive []byte
		want    error
	}{
		"small":         {compressed(t, archived(t, "web/Chart.yaml", goodChart)), nil},
		"no archive":    {[]byte("none"), nil},
		"cut off":       {large[:len(large)/2], nil},
		"half of it":    {large, nil},
		"large":         {compressed(t, archived(t, "web/large", strings.Repeat("x", maxChart))), errTooLarge},
		"large charts":  {compressed(t, archived(t, "web/charts/a.tgz", string(large), "web/charts/b.tgz", string(large))), errTooLarge},
		"a hole":        {compressed(t, archived(t, "web/charts/a.tgz", string(sparse(t, maxChart)))), errTooLarge},
		"a small hole":  {compressed(t, archived(t, "web/charts/a.tgz", string(sparse(t, 1<<20)))), nil},
		"deep":          {deep, nil},
		"too deep":      {compressed(t, archived(t, "web/charts/sub.tgz", string(deep))), errTooLarge},
		"not a nesting": {compressed(t, archived(t, "web/a.gz", string(large), "web/b.gz", string(large))), nil},
	} {
		if err := checkSize(test.archive); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}
