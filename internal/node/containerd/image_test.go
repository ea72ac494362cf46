package containerd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// program is what the test images run. It writes a line, or its arguments, and then waits to be
// stopped.
const program = `package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println(os.Args[1:])
		return
	}
	fmt.Println("hello from a container")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
}
`

// buildProgram returns the program, compiled.
func buildProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	source, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", out, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build program: %v: %s", err, output)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type entry struct {
	name string
	mode int64
	data []byte
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func jsonOf(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func digestOf(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

func imageConfig(t testing.TB, layer []byte) []byte {
	return jsonOf(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/main"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digestOf(layer)}},
	})
}

// dockerArchive is what `docker save` writes.
func dockerArchive(t testing.TB, name string, binary []byte) []byte {
	layer := tarOf(t, entry{"main", 0o755, binary})
	return tarOf(t,
		entry{"config.json", 0o644, imageConfig(t, layer)},
		entry{"layer.tar", 0o644, layer},
		entry{"manifest.json", 0o644, jsonOf(t, []map[string]any{
			{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}},
		})},
	)
}

// ociArchive is an OCI image layout, with one layer that is not compressed.
func ociArchive(t testing.TB, name string, binary []byte) []byte {
	layer := tarOf(t, entry{"main", 0o755, binary})
	config := imageConfig(t, layer)
	descriptor := func(kind string, data []byte) map[string]any {
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + digestOf(data), "size": len(data)}
	}
	manifest := jsonOf(t, map[string]any{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        descriptor("config.v1+json", config),
		"layers":        []any{descriptor("layer.v1.tar", layer)},
	})
	top := descriptor("manifest.v1+json", manifest)
	top["annotations"] = map[string]string{"io.containerd.image.name": name}
	return tarOf(t,
		entry{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		entry{"blobs/sha256/" + digestOf(layer), 0o644, layer},
		entry{"blobs/sha256/" + digestOf(config), 0o644, config},
		entry{"blobs/sha256/" + digestOf(manifest), 0o644, manifest},
		entry{"index.json", 0o644, jsonOf(t, map[string]any{"schemaVersion": 2, "manifests": []any{top}})},
	)
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func writeImages(t *testing.T, dir string) {
	binary := buildProgram(t)
	write(t, dir+"/pause.tar", dockerArchive(t, pauseImage, binary))
	write(t, dir+"/images/hello.tar.gz", gzipped(t, ociArchive(t, helloImage, binary)))
}
