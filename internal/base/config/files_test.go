package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestFIFO puts a FIFO in the place of each file that the configuration reads or names. A
// start must refuse it, and not wait for a writer.
func TestFIFO(t *testing.T) {
	folder := t.TempDir()
	fifo, settings := filepath.Join(folder, "fifo"), filepath.Join(folder, "config.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	const refused = "this is a FIFO"
	if _, err := Load(fifo); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("the configuration itself: %v", err)
	}
	keys := map[string]string{
		"token-file": fifo, "agent-token-file": fifo, "kubelet-arg": "config=" + fifo,
		"kube-apiserver-arg": "--encryption-provider-config=" + fifo, "kube-proxy-arg": "config=" + fifo,
		"kube-controller-manager-arg": "root-ca-file=" + fifo, "kube-scheduler-arg": "kubeconfig=" + fifo,
	}
	for _, f := range Default().Fields() {
		if f.file {
			keys[f.Key] = fifo
		}
	}
	for _, key := range []string{"private-registry", "flannel-conf", "resolv-conf", "write-kubeconfig", "datastore-cafile", "s3-endpoint-ca"} {
		if keys[key] == "" {
			t.Errorf("%s is not known as a file", key)
		}
	}
	for key, value := range keys {
		if err := os.WriteFile(settings, []byte(key+": "+value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(settings); err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), fifo+": "+refused) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestFilesThatPass wants checkFiles to leave to their readers what cannot block them.
func TestFilesThatPass(t *testing.T) {
	folder := t.TempDir()
	for _, path := range []string{folder, filepath.Join(folder, "missing"), os.DevNull, "registries.yaml"} {
		c := Default()
		c.Node.PrivateRegistry = path
		c.Server.KubeAPIServerArgs = []string{"audit-log-path=/dev/stdout", "audit-policy-file=" + path, "etcd-servers=unix:///run/x.sock"}
		if err := c.checkFiles(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestFileTags wants every setting whose description says that it is a file to be checked.
func TestFileTags(t *testing.T) {
	read := []string{"token-file", "agent-token-file"} // by readToken
	for _, f := range Default().Fields() {
		told := strings.HasPrefix(f.Usage, "file with ") || strings.HasSuffix(f.Key, "-file")
		if told && !f.file && !slices.Contains(read, f.Key) {
			t.Errorf("%s names a file (%s) and has no tag file", f.Key, f.Usage)
		}
		if f.file && f.value.Kind() != reflect.String {
			t.Errorf("%s has the tag file and is no text", f.Key)
		}
	}
}
