package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// unpack returns the files of an archive.
func unpack(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	unpacked, err := gzip.NewReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for reader := tar.NewReader(unpacked); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}

func text(name, text string, err error) Part {
	return Part{name, func(context.Context) ([]byte, error) { return []byte(text), err }}
}

func TestWrite(t *testing.T) {
	var archive bytes.Buffer
	err := Write(t.Context(), &archive, "bundle", []Part{
		text("whole", "the token is K10::server:hush, and hush is hidden", nil),
		text("nothing", "", errors.New("no hush here")),
		text("half/of it", "a half", errors.New("cut off")),
		text("quoted", `{"a": "x \"y\u0026z"} b="x \"y&z" c=x%20%22y&z c=x+%22y%26z`, nil),
	}, []string{"hush\n", "K10::server:hush", "the", "", `x "y&z`})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"bundle/whole":       "the token is (hidden), and (hidden) is hidden",
		"bundle/half/of it":  "a half",
		"bundle/quoted":      `{"a": "(hidden)"} b="(hidden)" c=(hidden) c=(hidden)`,
		"bundle/missing.txt": "nothing: no (hidden) here\nhalf/of it: cut off\n",
	}
	got := unpack(t, &archive)
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s: got %q, want %q", name, got[name], text)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
}

func TestHost(t *testing.T) {
	var archive bytes.Buffer
	if err := Write(t.Context(), &archive, "", Host("/", "/does/not/exist"), nil); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, &archive)
	for name, text := range map[string]string{
		"host/disks.txt":         "/: type 0x",
		"host/proc/meminfo":      "MemTotal",
		"network/interfaces.txt": " lo: ",
		"network/routes.txt":     "rule ",
		"missing.txt":            "/does/not/exist",
	} {
		if !strings.Contains(got[name], text) {
			t.Errorf("%s has no %q: %s", name, text, got[name])
		}
	}
}

func TestCommandAndFile(t *testing.T) {
	got, err := Command("", []string{"WORD=said"}, "sh", "-c", "echo $WORD; echo why >&2; exit 3").Get(t.Context())
	if string(got) != "said\n" || err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %q, %v", got, err)
	}
	got, err = Log(text("", "before\nExec lifecycle hook ([hush]) for\nerror=\"command '/x hush' exited with 137: \"\nResponse Body body=hush\nafter\n", errors.New("cut off"))).Get(t.Context())
	left := "(kedge has left out a line that quotes the content of pods or objects)\n"
	if string(got) != "before\n"+left+left+left+"after\n" || err == nil {
		t.Errorf("got %q, %v", got, err)
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, append(bytes.Repeat([]byte("old\n"), mostLog/4), "new\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := File("", path).Get(t.Context()); err != nil || len(got) != mostLog || !bytes.HasSuffix(got, []byte("old\nnew\n")) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Objects that are full of secrets are shown only with their identity and their state.
func TestCluster(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "app", Annotations: map[string]string{"note": "hush"}}
	event := func(reason, message string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: reason}, Type: "Warning", Reason: reason, Message: message}
	}
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi", Annotations: meta.Annotations}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1"}}},
		&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"key": []byte("hush")}},
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"key": "hush"}},
		&corev1.Pod{
			ObjectMeta: meta,
			Spec: corev1.PodSpec{NodeName: "pi", Containers: []corev1.Container{{
				Name: "main", Image: "web", Args: []string{"hush"}, Env: []corev1.EnvVar{{Name: "KEY", Value: "hush"}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Image: "web", RestartCount: 3,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 7, Message: "hush"}},
			}}},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: meta.Annotations},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName:       "local",
				ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: "data"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{VolumeAttributes: map[string]string{"key": "hush"}}},
			},
		},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waits"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}},
		event("Unhealthy", "Liveness probe failed: hush"),
		event("FailedScheduling", "0/1 nodes: no room"),
	)
	var archive bytes.Buffer
	if err := Write(t.Context(), &archive, "", Cluster(client), nil); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, &archive)
	for name, words := range map[string][]string{
		"cluster/nodes.yaml":   {"name: pi", "kubeletVersion: v1"},
		"cluster/pods.yaml":    {"name: app", "image: web", "restarts: 3", "CrashLoopBackOff", "status 7"},
		"cluster/volumes.yaml": {"name: pvc-1", "claim: default/data", "claim: default/waits", "phase: Pending"},
		"cluster/events.txt":   {"Unhealthy", "Liveness probe failed\n", "no room"},
	} {
		for _, word := range words {
			if !strings.Contains(got[name], word) {
				t.Errorf("%s has no %q:\n%s", name, word, got[name])
			}
		}
	}
	for name, text := range got {
		if strings.Contains(text, "hush") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
}
