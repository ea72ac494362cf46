package session

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	odd := &unstructured.Unstructured{Object: map[string]any{"data": map[string]any{"none": nil, "password": "aHVzaA=="}}}
	hideValues(odd)
	if text, err := json.Marshal(odd.Object); err != nil || strings.Contains(string(text), "aHVzaA") {
		t.Errorf("the secret is in %s, %v", text, err)
	}
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
		{"", "endpoints", metav1.Verbs{"list"}, false}, {"example.com", "events", metav1.Verbs{"list"}, true}, {"example.com", "endpoints", metav1.Verbs{"list"}, true},
	} {
		if got := dumped(test.group, metav1.APIResource{Name: test.name, Verbs: test.verbs}); got != test.want {
			t.Errorf("%s of %q: got %t", test.name, test.group, got)
		}
	}
}

// newEvidence returns an empty folder for evidence.
func newEvidence(t *testing.T) (*evidence, string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "new", "folder")
	to, err := openEvidence(folder, User{os.Geteuid(), os.Getegid()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.root.Close() })
	return to, folder
}

// makeFile makes a file with its folders.
func makeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestCopyFolder has a folder of logs in which a pod has made links to files of the machine, and a pipe.
func TestCopyFolder(t *testing.T) {
	node, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	from := filepath.Join(node, "var", "log", "pods")
	makeFile(t, filepath.Join(from, "pod", "0.log"), "logged")
	makeFile(t, outside, "not theirs")
	for link, target := range map[string]string{
		"file.log": outside, "pod/file.log": outside, "folder": filepath.Dir(outside), "../linked": filepath.Dir(outside), "../up": "../../..",
	} {
		if err := os.Symlink(target, filepath.Join(from, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(from, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	to, folder := newEvidence(t)
	if err := to.copyFolder(node, "var/log/pods", "pods"); err != nil {
		t.Fatal(err)
	}
	if got := filesOf(t, folder); !slices.Equal(got, []string{"/pods/pod/0.log"}) {
		t.Errorf("got files %q", got)
	}
	// The pipe takes the place of a file just before it is copied.
	logs, err := os.OpenRoot(from)
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	if err := to.copyFile(logs, "pipe", "pipe"); err != nil {
		t.Error(err)
	}
	if err := to.copyFolder(node, "none", "none"); err != nil {
		t.Errorf("a folder that is not there: %v", err)
	}
	for _, link := range []string{"var/log/linked", "var/log/up"} {
		if err := to.copyFolder(node, link, "linked"); err == nil {
			t.Errorf("%s was followed out of the node", link)
		}
	}
	if got := filesOf(t, folder); len(got) != 1 {
		t.Errorf("got files %q", got)
	}
}

// filesOf returns the files below a folder.
func filesOf(t *testing.T, folder string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path[len(folder):])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestEvidence writes where another user has made links and a pipe.
func TestEvidence(t *testing.T) {
	to, folder := newEvidence(t)
	outside := t.TempDir()
	makeFile(t, filepath.Join(outside, "file"), "not ours")
	makeFile(t, filepath.Join(folder, "old"), "old")
	for link, target := range map[string]string{"file": filepath.Join(outside, "file"), "objects": outside} {
		if err := os.Symlink(target, filepath.Join(folder, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(folder, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"file", "old", "pipe", "a/b/new"} {
		if err := to.write(path, strings.NewReader("new")); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(filepath.Join(folder, path)); err != nil || string(text) != "new" {
			t.Errorf("%s is %q, %v", path, text, err)
		}
	}
	if err := to.write("objects/pods.yaml", strings.NewReader("new")); err == nil {
		t.Error("a link led out of the folder")
	}
	if text, err := os.ReadFile(filepath.Join(outside, "file")); err != nil || string(text) != "not ours" {
		t.Errorf("the file outside is %q, %v", text, err)
	}
	if files := filesOf(t, outside); len(files) != 1 {
		t.Errorf("outside are %q", files)
	}
}

// TestEvidenceBelongsToTheUser has root write for another user.
func TestEvidenceBelongsToTheUser(t *testing.T) {
	user := User{12345, 54321}
	if os.Geteuid() != 0 {
		user = User{os.Geteuid(), os.Getegid()} // the only one that files can be given to
	}
	above := t.TempDir()
	to, err := openEvidence(filepath.Join(above, "new", "folder"), user)
	if err != nil {
		t.Fatal(err)
	}
	defer to.root.Close()
	if err := to.write("a/file", strings.NewReader("text")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"new", "new/folder", "new/folder/a", "new/folder/a/file"} {
		var info unix.Stat_t
		if err := unix.Stat(filepath.Join(above, path), &info); err != nil || int(info.Uid) != user.ID || int(info.Gid) != user.Group {
			t.Errorf("%s belongs to %d:%d, %v", path, info.Uid, info.Gid, err)
		}
	}
	var info unix.Stat_t
	if err := unix.Stat(above, &info); err != nil || int(info.Uid) != os.Geteuid() {
		t.Errorf("a folder that was there belongs to %d, %v", info.Uid, err)
	}
}

// TestIgnoredSignals has a signal that this process ignores, as with nohup.
func TestIgnoredSignals(t *testing.T) {
	signal.Ignore(unix.SIGHUP)
	defer signal.Reset(unix.SIGHUP)
	s := catchSignals()
	if !signal.Ignored(unix.SIGHUP) {
		t.Error("the signal is no longer ignored")
	}
	if err := unix.Kill(os.Getpid(), unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if got := <-s.caught; got != unix.SIGUSR1 {
		t.Errorf("got %v", got)
	}
	s.stop()
}
