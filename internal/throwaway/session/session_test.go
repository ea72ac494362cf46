package session

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestExitStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -TERM $$": 143, "kill -KILL $$": 137} {
		cmd := exec.Command("sh", "-c", script)
		if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
			t.Fatal(err)
		}
		if got := exitStatus(cmd.ProcessState); got != want {
			t.Errorf("%s: got %d, want %d", script, got, want)
		}
	}
	if got := notStarted(exec.Command("/no/such/program").Run()); got != 127 {
		t.Errorf("a program that is not there: %d", got)
	}
	if got := notStarted(exec.Command("/etc/hostname").Run()); got != 126 {
		t.Errorf("a file that is no program: %d", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("KUBECONFIG", "/of/the/user")
	t.Setenv("OTHER", "kept")
	got := environment("/of/the/cluster")
	if !slices.Contains(got, "OTHER=kept") || !slices.Contains(got, "KUBECONFIG=/of/the/cluster") || slices.Contains(got, "KUBECONFIG=/of/the/user") {
		t.Errorf("got %q", got)
	}
}

// TestDecode reads what kubectl prints for one object and for several.
func TestDecode(t *testing.T) {
	for text, want := range map[string]int{
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`:                                                           1,
		`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod"},{"apiVersion":"apps/v1","kind":"DaemonSet"}]}`: 2,
		`{"apiVersion":"v1","kind":"List","items":[]}`:                                                                             0,
	} {
		if got, err := decode([]byte(text)); err != nil || len(got) != want {
			t.Errorf("%s: got %d objects, %v", text, len(got), err)
		}
	}
	if _, err := decode([]byte("no objects")); err == nil {
		t.Error("text was read as objects")
	}
}

func TestDumpHidesSecrets(t *testing.T) {
	secret := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "login", "annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "hush", "kept": "yes"}},
		"data":     map[string]any{"password": "aHVzaA=="},
	}}
	hideValues(secret)
	text, err := secret.MarshalJSON()
	if err == nil && (strings.Contains(string(text), "aHVzaA") || strings.Contains(string(text), "hush")) {
		t.Errorf("the secret is in %s", text)
	}
	if secret.GetAnnotations()["kept"] != "yes" {
		t.Errorf("got annotations %v", secret.GetAnnotations())
	}
	for _, test := range []struct {
		group, name string
		verbs       metav1.Verbs
		want        bool
	}{
		{"", "pods", metav1.Verbs{"get", "list"}, true}, {"", "events", metav1.Verbs{"list"}, true}, {"events.k8s.io", "events", metav1.Verbs{"list"}, false},
		{"authorization.k8s.io", "selfsubjectaccessreviews", metav1.Verbs{"create"}, false}, {"", "componentstatuses", metav1.Verbs{"list"}, false},
	} {
		if got := dumped(test.group, metav1.APIResource{Name: test.name, Verbs: test.verbs}); got != test.want {
			t.Errorf("%s of %q: got %t", test.name, test.group, got)
		}
	}
}

// TestCopyFolder has a folder of logs in which a pod has made a link to a file of the machine.
func TestCopyFolder(t *testing.T) {
	from, to, outside := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "outside")
	for path, text := range map[string]string{filepath.Join(from, "pod", "0.log"): "logged", outside: "not theirs"} {
		if err := writeFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"file.log", "pod/file.log"} {
		if err := os.Symlink(outside, filepath.Join(from, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(from, "folder")); err != nil {
		t.Fatal(err)
	}
	if err := copyFolder(from, to); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(to, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path[len(to):])
		}
		return err
	})
	if err != nil || !slices.Equal(files, []string{"/pod/0.log"}) {
		t.Errorf("got files %q, %v", files, err)
	}
	if err := copyFolder(filepath.Join(from, "none"), to); err != nil {
		t.Errorf("a folder that is not there: %v", err)
	}
}
