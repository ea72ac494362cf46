package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// twoImages builds an archive of two images that share a layer.
func twoImages(t *testing.T) (archive string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"base/etc/name": "base", "base/tmp/x": "", "top/etc/top": "top"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "base/etc/name"), os.ModeSetuid|0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("name", filepath.Join(dir, "base/etc/link")); err != nil {
		t.Fatal(err)
	}
	spec := `[
		{"ref": "example.org/one:1", "layers": ["` + dir + `/base"], "config": {"Cmd": ["sh"]}},
		{"ref": "example.org/two:2", "layers": ["` + dir + `/base", "` + dir + `/top"], "config": {"User": "5"}}]`
	if err := os.WriteFile(filepath.Join(dir, "spec.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	archive = filepath.Join(dir, "images.tar")
	if err := build(filepath.Join(dir, "spec.json"), archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

func TestSameFoldersGiveSameBytes(t *testing.T) {
	one, err := os.ReadFile(twoImages(t))
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(twoImages(t))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Error("two builds differ")
	}
	if count := bytes.Count(one, []byte("etc/name")); count != 1 {
		t.Errorf("the archive holds the shared layer %d times", count)
	}
}

func TestRegistry(t *testing.T) {
	registry, err := newRegistry(filepath.Dir(twoImages(t)))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.handler())
	defer server.Close()
	get := func(path string) (int, []byte) {
		t.Helper()
		response, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, data
	}
	_, data := get("/v2/two/manifests/2")
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest.Layers) != 2 {
		t.Fatalf("manifest has %d layers", len(manifest.Layers))
	}
	for _, blob := range append(manifest.Layers, manifest.Config) {
		if _, data := get("/v2/two/blobs/" + blob.Digest.String()); digest.FromBytes(data) != blob.Digest {
			t.Errorf("blob %s has other content", blob.Digest)
		}
	}
	_, again := get("/v2/two/manifests/" + digest.FromBytes(data).String())
	if !bytes.Equal(again, data) {
		t.Error("the manifest differs by digest")
	}
	for path, want := range map[string]int{"/v2/": 200, "/v2/two/manifests/1": 404, "/v2/x": 404, "/": 404} {
		if got, _ := get(path); got != want {
			t.Errorf("GET %s: %d, want %d", path, got, want)
		}
	}
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	if err := unpack(twoImages(t), "one", "testing", dir); err != nil {
		t.Fatal(err)
	}
	read := func(kind, sum string) []byte {
		t.Helper()
		sum = strings.TrimPrefix(sum, "sha256:")
		data, err := os.ReadFile(filepath.Join(dir, "one", kind, "sha256", sum[:2], sum, "data"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	sum, err := os.ReadFile(filepath.Join(dir, "one/manifests/testing"))
	if err != nil {
		t.Fatal(err)
	}
	var index ocispec.Index
	if err := json.Unmarshal(read("manifests", strings.TrimSpace(string(sum))), &index); err != nil {
		t.Fatal(err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(read("manifests", index.Manifests[0].Digest.String()), &manifest); err != nil {
		t.Fatal(err)
	}
	read("blobs", manifest.Config.Digest.String())
	read("blobs", manifest.Layers[0].Digest.String())
}
