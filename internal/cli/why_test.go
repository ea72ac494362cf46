package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// TestWhyRefuses wants faults of the command line to be named before the API is asked.
func TestWhyRefuses(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"why cow/web":                `kedge cannot explain a "cow". It explains pod,`,
		"why pod":                    "name one object, such as pod/web",
		"why pod web other":          "name one object, such as pod/web",
		"why -A pod/web":             "--all-namespaces is for `kedge why` without an object",
		"why --kubeconfig=/nothing":  "read kubeconfig: stat /nothing: no such file",
		"why --kubeconfig=" + broken: "read kubeconfig: ",
		"why --output=words pod/web": "",
	} {
		_, err := run(t, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

func TestPrintWay(t *testing.T) {
	var out bytes.Buffer
	report := &why.Report{
		Object: why.Object{Kind: "Pod", Namespace: "shop", Name: "web"},
		Steps: []why.Step{
			{Name: "scheduling", State: why.Passed, Says: "it has the node a"},
			{Name: "ports", State: why.Warning, Says: "it says port 80", Do: "say port 8080"},
			{Name: "images", State: why.Failed, Says: "the registry has no image", Do: "correct the tag"},
		},
		Unread: []string{"You may not read nodes, so what they would tell is missing here."},
	}
	if err := printWay(&out, report); err != nil {
		t.Fatal(err)
	}
	const want = `pod/web in namespace shop
  ok      scheduling  it has the node a
  note    ports       it says port 80
  FAILED  images      the registry has no image
You may not read nodes, so what they would tell is missing here.

What to do: say port 8080

What to do: correct the tag
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	found := unwell{Looked: 3, Reports: []*why.Report{report}}
	if err := printUnwell(&out, found, "namespace shop"); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "shop pod/web: the registry has no image\n  What to do: correct the tag\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	out.Reset()
	if err := printUnwell(&out, unwell{Looked: 3}, "namespace shop"); err != nil || out.String() != "All is well with 3 objects of namespace shop.\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	if err := printUnwell(&out, unwell{}, "namespace shop"); err == nil {
		t.Error("an empty namespace is well")
	}
}
