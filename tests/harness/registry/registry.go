// Package registry serves images to hosts of tests/harness, as a private registry does: with a password,
// and with TLS by an authority of its own. Tests below tests/ call it.
package registry

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/scripts/ociimage"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// program returns the program that is in all images.
func program(t *testing.T) []byte {
	t.Helper()
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := image.Testserver(repository); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(image.TestserverProgram(repository))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Archive makes an image archive. The images differ only in their names.
func Archive(t *testing.T, name string) []byte {
	t.Helper()
	data, err := ociimage.Archive(name, runtime.GOARCH, ocispec.ImageConfig{Env: []string{"PATH=/"}, Entrypoint: []string{"/testserver"}, Cmd: []string{"sleep"}}, []ociimage.File{
		{Name: "testserver", Mode: 0o755, Data: program(t)},
		{Name: "name", Mode: 0o644, Data: []byte(name)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Registry is a registry to pull from, at port 5000. It requires a password of the user reader, and TLS
// with an authority that hosts do not know by default.
type Registry struct {
	Host *harness.Host
	// Authority is the certificate of the authority in PEM.
	Authority []byte

	server *http.Server

	mu       sync.Mutex
	password string
	blobs    map[string][]byte
	tags     map[string]digest.Digest // by REPOSITORY:TAG
	asked    []string
}

// Start serves a registry on a host of its own, in the test's process. Its certificate is for a name.
// The password is "first".
func Start(t *testing.T, network *harness.Network, name string) *Registry {
	t.Helper()
	certificate, key := cluster.Certificate(t, name)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	r := &Registry{Host: network.NewHost(t, "registry"), Authority: certificate, password: "first", blobs: map[string][]byte{}, tags: map[string]digest.Digest{}}
	r.server = &http.Server{Handler: r, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}
	listener := r.Host.Listen(":5000")
	go func() { _ = r.server.ServeTLS(listener, "", "") }()
	t.Cleanup(r.Stop)
	return r
}

// Stop stops the registry.
func (r *Registry) Stop() { _ = r.server.Close() }

// SetPassword replaces the password.
func (r *Registry) SetPassword(password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.password = password
}

// Add adds an image as REPOSITORY:TAG.
func (r *Registry) Add(t *testing.T, name string, data []byte) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for reader := tar.NewReader(bytes.NewReader(data)); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		r.blobs["sha256:"+path.Base(header.Name)] = content
		if header.Name == ocispec.ImageIndexFile {
			var index ocispec.Index
			if err := json.Unmarshal(content, &index); err != nil {
				t.Fatal(err)
			}
			r.tags[name] = index.Manifests[0].Digest
		}
	}
}

// Pulled returns how often manifests or blobs of a repository were requested.
func (r *Registry) Pulled(repository, objects string) (count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range r.asked {
		if strings.HasPrefix(path, "/v2/"+repository+"/"+objects+"/") {
			count++
		}
	}
	return count
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if user, password, _ := request.BasicAuth(); user != "reader" || password != r.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.asked = append(r.asked, request.URL.Path)
	words := strings.Split(strings.TrimPrefix(request.URL.Path, "/v2/"), "/")
	if len(words) < 3 || !slices.Contains([]string{"manifests", "blobs"}, words[len(words)-2]) {
		http.NotFound(w, request)
		return
	}
	object := words[len(words)-1]
	if tagged, ok := r.tags[strings.Join(words[:len(words)-2], "/")+":"+object]; ok {
		object = tagged.String()
	}
	content, ok := r.blobs[object]
	if !ok {
		http.NotFound(w, request)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if words[len(words)-2] == "manifests" {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", object)
	}
	_, _ = w.Write(content)
}
