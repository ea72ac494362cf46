// Package registry is the image registry of a throw-away cluster. The user of the host pushes images
// to it as localhost:PORT/NAME, and the nodes of the cluster pull them by that name from the cluster's
// bridge. It speaks the distribution API of
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md.
//
// The process that keeps a cluster's hosts creates it, serves its two handlers, and gives the text of
// Mirror to each node. Everything pushed is below one folder, and is there again after a restart. The
// folder needs no other care: it is removed with the cluster.
package registry

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/opencontainers/go-digest"
)

const (
	// maxManifest is how long a manifest can be. Clients take 4 MiB, too:
	// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pushing-manifests
	maxManifest = 4 << 20
	// maxUploads is how many uploads can be under way. Docker has five for each image.
	maxUploads = 100
	// maxIdle is how long an upload can be without a request, and a request without a byte.
	maxIdle = 10 * time.Minute
	// reserve is the free space, in bytes, that an upload leaves on the disk.
	reserve = 64 << 20
)

// Registry keeps images in a folder. All repositories share their blobs.
type Registry struct {
	folder  string
	content content.Store
	names   *names

	mu      sync.Mutex
	uploads map[string]*upload
	closed  bool
}

// New opens the registry in a folder, which it makes if it is missing. It removes uploads that were
// never finished, and blobs that belong to no manifest. Only one Registry can use a folder at a time.
func New(folder string) (*Registry, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the registry: %w", err)
	}
	files := filepath.Join(folder, "content")
	if err := os.RemoveAll(filepath.Join(files, "ingest")); err != nil { // of containerd's content store
		return nil, fmt.Errorf("remove unfinished uploads: %w", err)
	}
	store, err := local.NewStore(files)
	if err != nil {
		return nil, fmt.Errorf("open the content of the registry: %w", err)
	}
	// The store makes the folder when something is written. Until then it cannot be walked.
	if err := os.MkdirAll(filepath.Join(files, "blobs"), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of blobs: %w", err)
	}
	all, err := readNames(filepath.Join(folder, "names.json"))
	if err != nil {
		return nil, fmt.Errorf("read the names of the registry: %w", err)
	}
	r := &Registry{folder: folder, content: store, names: all, uploads: map[string]*upload{}}
	if err := r.sweep(context.Background()); err != nil {
		return nil, fmt.Errorf("remove blobs without a manifest: %w", err)
	}
	return r, nil
}

// Close ends all uploads and refuses new ones. Close the servers of the handlers first.
func (r *Registry) Close() {
	r.mu.Lock()
	r.closed = true
	all := r.uploads
	r.uploads = map[string]*upload{}
	r.mu.Unlock()
	for _, u := range all {
		u.mu.Lock()
		u.drop(r.content)
		u.mu.Unlock()
	}
}

// sweep removes the blobs that no manifest names. A manifest that cannot be read is forgotten, so that
// clients push it again.
func (r *Registry) sweep(ctx context.Context) error {
	used, lost := map[digest.Digest]bool{}, map[digest.Digest]bool{}
	for _, sum := range r.names.manifests() {
		m, err := r.readManifest(ctx, sum)
		if err != nil {
			lost[sum] = true
			continue
		}
		used[sum] = true
		for _, blob := range m.blobs() {
			used[blob.Digest] = true
		}
	}
	if err := r.names.forget(lost); err != nil {
		return err
	}
	var unused []digest.Digest
	err := r.content.Walk(ctx, func(info content.Info) error {
		if !used[info.Digest] {
			unused = append(unused, info.Digest)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, sum := range unused {
		if err := r.content.Delete(ctx, sum); err != nil {
			return err
		}
	}
	return nil
}

// Clients returns the handler for the programs of users on this host, which push and pull. Its server
// must listen on addresses of the loopback interface only. The handler serves root and the user with
// the ID owner. It refuses other users, because whoever replaces an image decides what runs as root in
// the cluster. It also refuses web pages in a browser of these two users.
func (r *Registry) Clients(owner int) http.Handler {
	return guard(isLoopback, onlyUsers(r.routes(), 0, owner))
}

// Nodes returns the handler for the nodes of the cluster, on its bridge. It is read-only, because pods
// can reach it too.
func (r *Registry) Nodes() http.Handler {
	routes := r.routes()
	return guard(isAddress, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, fault{http.StatusMethodNotAllowed, codeUnsupported, "the nodes and pods of a cluster cannot change its images: push them from the host, as localhost:PORT/NAME"})
			return
		}
		routes.ServeHTTP(w, req)
	}))
}

// routes returns the handler of the API, for callers that have been let in.
func (r *Registry) routes() http.Handler {
	routes := map[route]func(http.ResponseWriter, *http.Request, target) error{
		{"GET", isRoot}:        r.ping,
		{"GET", isTags}:        r.listTags,
		{"GET", isManifest}:    r.getManifest,
		{"PUT", isManifest}:    r.putManifest,
		{"DELETE", isManifest}: r.deleteManifest,
		{"GET", isBlob}:        r.getBlob,
		{"POST", isUploads}:    r.startUpload,
		{"GET", isUpload}:      r.showUpload,
		{"PATCH", isUpload}:    r.writeUpload,
		{"PUT", isUpload}:      r.finishUpload,
		{"DELETE", isUpload}:   r.cancelUpload,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		t, err := parsePath(req.URL.Path)
		if err != nil {
			refuse(w, err)
			return
		}
		method := req.Method
		if method == http.MethodHead {
			method = http.MethodGet // net/http leaves out the body
		}
		serve := routes[route{method, t.kind}]
		if serve == nil {
			refuse(w, fault{http.StatusMethodNotAllowed, codeUnsupported, fmt.Sprintf("this registry has no %s for %s", req.Method, req.URL.Path)})
			return
		}
		if err := serve(w, req, t); err != nil {
			refuse(w, r.explain(err))
		}
	})
}

// route is a method and the kind of object that it is for.
type route struct {
	method string
	kind   kind
}

// ping says that this is a registry.
func (r *Registry) ping(w http.ResponseWriter, _ *http.Request, _ target) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write([]byte("{}"))
	return err
}
