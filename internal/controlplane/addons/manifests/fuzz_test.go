package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// FuzzDecode reads arbitrary bytes as a file of manifests. It must be possible to
// apply and to name each object.
func FuzzDecode(f *testing.F) {
	for _, content := range []string{
		"",
		"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b, labels: {c: d}}\n---\n# nothing\n",
		`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}},null]}`,
		"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: [{}]}]\n",
		"apiVersion: v1\nkind: ConfigMapList\nitems: {}\n",
		"apiVersion: [v1]\nkind: 1\nmetadata: [name]\n",
		"apiVersion: a/b/c\nkind: X\nmetadata: {name: \"\", labels: [1], annotations: {a: 1}}\n",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {a: {b: c}}}\ndata: &a {a: b}\nbinaryData: *a\n",
		"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
		"{" + strings.Repeat(`"a":{`, 100),
		"\xef\xbb\xbfkind: x\n...\n%YAML 1.2\n---\n",
	} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		objects, err := decode(content)
		if err != nil {
			return
		}
		for _, object := range objects {
			if object.GetKind() == "" || object.GetAPIVersion() == "" || object.GetName() == "" || identityOf(object).String() == "" {
				t.Errorf("the object %v has no name", object.Object)
			}
			object.SetLabels(withLabel(object.GetLabels(), "set"))
			if object.GetLabels()[partOfLabel] != "set" {
				t.Errorf("the object %v cannot be labelled", object.Object)
			}
			text, err := object.MarshalJSON()
			if err != nil {
				t.Errorf("the object %v cannot be sent: %v", object.Object, err)
			}
			if again, err := decode(text); !object.IsList() && (err != nil || len(again) != 1 || identityOf(again[0]) != identityOf(object)) {
				t.Errorf("the object %s is %v when it is read again: %v", text, again, err)
			}
		}
	})
}

// FuzzScan puts files with arbitrary names into the folder. Only files of the
// folder may be applied, and the API must accept the name of each file's
// ConfigMap.
func FuzzScan(f *testing.F) {
	f.Add("web.yaml", "web.yaml.skip", "off")
	f.Add("a/b.json", "a.skip", "")
	f.Add("../a.yaml", ".yaml", "a")
	f.Add("Ünï code.yml", ".skip", ".")
	f.Add("a//b.yaml", "off/a.yaml", "off")
	f.Fuzz(func(t *testing.T, one, other, disabled string) {
		root := t.TempDir()
		folder := filepath.Join(root, "manifests")
		for _, path := range []string{filepath.Join(folder, "a.yaml"), filepath.Join(root, "outside.yaml"), filepath.Join(folder, one), filepath.Join(folder, other)} {
			if !strings.HasPrefix(path, root+"/") || strings.Contains(path, "\x00") {
				continue
			}
			// A name may be too long, or both a file and a folder.
			if os.MkdirAll(filepath.Dir(path), 0o700) == nil {
				_ = os.WriteFile(path, []byte(path), 0o600)
			}
		}
		found, err := scan(folder, []string{disabled})
		if err != nil {
			return
		}
		for name, content := range found.contents {
			if !filepath.IsLocal(name) || string(content) != filepath.Join(folder, name) {
				t.Errorf("the file %q is %q", name, content)
			}
			if faults := validation.IsDNS1123Subdomain(setName(name)); len(faults) > 0 {
				t.Errorf("the file %q has the ConfigMap %q: %v", name, setName(name), faults)
			}
			if disabledBy(name, []string{disabled}) != "" || found.isSkipped(name) {
				t.Errorf("the file %q is applied, though %q and %q", name, other, disabled)
			}
		}
	})
}
