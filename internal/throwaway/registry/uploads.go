package registry

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// upload is a blob that a client sends in one or more requests.
type upload struct {
	id, repository string
	timer          *time.Timer

	// mu is held by the request that is writing.
	mu sync.Mutex
	// writer is nil if the upload has ended.
	writer content.Writer
	size   int64
	used   time.Time
}

// startUpload begins an upload. With the parameter mount nothing needs to be uploaded if any repository
// has the blob. With the parameter digest the request has the whole blob.
func (r *Registry) startUpload(w http.ResponseWriter, req *http.Request, t target) error {
	query := req.URL.Query()
	var whole digest.Digest
	var err error
	if mount := query.Get("mount"); mount != "" {
		sum, err := parseDigest(mount)
		if err != nil {
			return err
		}
		if _, err := r.content.Info(req.Context(), sum); err == nil {
			created(w, t.repository, "blobs", sum)
			return nil
		}
	} else if text := query.Get("digest"); text != "" {
		if whole, err = parseDigest(text); err != nil {
			return err
		}
	}
	u, err := r.open(req, t.repository)
	if err != nil {
		return err
	}
	defer r.release(u)
	if whole == "" {
		u.describe(w)
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	if err := r.append(w, req, u); err != nil {
		r.end(u) // nobody knows its ID
		return err
	}
	return r.commit(w, req, u, whole)
}

// showUpload says how much of an upload has arrived.
func (r *Registry) showUpload(w http.ResponseWriter, _ *http.Request, t target) error {
	u, err := r.take(t)
	if err != nil {
		return err
	}
	defer r.release(u)
	u.describe(w)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// writeUpload appends to an upload.
func (r *Registry) writeUpload(w http.ResponseWriter, req *http.Request, t target) error {
	u, err := r.take(t)
	if err != nil {
		return err
	}
	defer r.release(u)
	if err := r.append(w, req, u); err != nil {
		return err
	}
	u.describe(w)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// finishUpload appends what the request still has, and makes a blob of the upload.
func (r *Registry) finishUpload(w http.ResponseWriter, req *http.Request, t target) error {
	sum, err := parseDigest(req.URL.Query().Get("digest"))
	if err != nil {
		return err
	}
	u, err := r.take(t)
	if err != nil {
		return err
	}
	defer r.release(u)
	if err := r.append(w, req, u); err != nil {
		return err
	}
	return r.commit(w, req, u, sum)
}

// cancelUpload ends an upload and removes what has arrived.
func (r *Registry) cancelUpload(w http.ResponseWriter, _ *http.Request, t target) error {
	u, err := r.take(t)
	if err != nil {
		return err
	}
	defer r.release(u)
	r.end(u)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// open makes an upload, which the caller must release.
func (r *Registry) open(req *http.Request, repository string) (*upload, error) {
	if err := r.checkSpace(); err != nil {
		return nil, err
	}
	u := &upload{id: rand.Text(), repository: repository}
	u.mu.Lock()
	if err := r.admit(u); err != nil {
		return nil, err
	}
	var err error
	if u.writer, err = r.content.Writer(req.Context(), content.WithRef(u.id)); err != nil {
		r.end(u)
		u.mu.Unlock()
		return nil, err
	}
	return u, nil
}

// admit counts an upload among those under way. The caller holds its lock.
func (r *Registry) admit(u *upload) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fault{http.StatusServiceUnavailable, codeUnknown, "the cluster is stopping: push again when it runs"}
	}
	if len(r.uploads) >= maxUploads {
		return fault{http.StatusTooManyRequests, codeTooManyRequests, fmt.Sprintf("%d uploads are under way: wait for these. Uploads that a program has left end after %s", maxUploads, maxIdle)}
	}
	u.timer = time.AfterFunc(maxIdle, func() { r.expire(u) })
	r.uploads[u.id] = u
	return nil
}

// take returns the upload that a path names, which the caller must release.
func (r *Registry) take(t target) (*upload, error) {
	r.mu.Lock()
	u := r.uploads[t.upload]
	r.mu.Unlock()
	if u == nil || u.repository != t.repository {
		return nil, unknownUpload
	}
	if !u.mu.TryLock() {
		return nil, fault{http.StatusConflict, codeUploadInvalid, "another request is writing to this upload: wait for it"}
	}
	if u.writer == nil {
		u.mu.Unlock()
		return nil, unknownUpload
	}
	u.timer.Stop()
	return u, nil
}

// release lets other requests have an upload.
func (r *Registry) release(u *upload) {
	if u.writer != nil {
		u.used = time.Now()
		u.timer.Reset(maxIdle)
	}
	u.mu.Unlock()
}

// expire ends an upload without requests.
func (r *Registry) expire(u *upload) {
	if !u.mu.TryLock() {
		return // a request has it, and release starts the timer again
	}
	defer u.mu.Unlock()
	if time.Since(u.used) >= maxIdle {
		r.end(u)
	}
}

// end removes an upload and what has arrived. The caller holds its lock.
func (r *Registry) end(u *upload) {
	r.mu.Lock()
	delete(r.uploads, u.id)
	r.mu.Unlock()
	u.drop(r.content)
}

// drop closes the writer, and removes its file unless that has become a blob.
func (u *upload) drop(store content.Store) {
	u.timer.Stop()
	if u.writer == nil {
		return
	}
	_ = u.writer.Close() // the file is removed anyway
	u.writer = nil
	_ = store.Abort(background, u.id) // New removes what is left
}

// describe sets the headers that tell a client where to go on.
func (u *upload) describe(w http.ResponseWriter) {
	header := w.Header()
	header.Set("Location", "/v2/"+u.repository+"/blobs/uploads/"+u.id)
	header.Set("Docker-Upload-UUID", u.id)
	header.Set("Range", fmt.Sprintf("0-%d", max(u.size-1, 0)))
}

// append writes the body of a request to an upload. If the client goes away, the upload keeps what has
// arrived. If it cannot be written, the upload ends.
func (r *Registry) append(w http.ResponseWriter, req *http.Request, u *upload) error {
	if err := u.checkRange(w, req); err != nil {
		return err
	}
	from := &body{request: req.Body, control: http.NewResponseController(w), space: r.checkSpace}
	n, err := io.Copy(u.writer, from)
	u.size += n
	switch {
	case err == nil:
		return nil
	case from.err != nil:
		return fault{http.StatusBadRequest, codeUploadInvalid, fmt.Sprintf("the request ended early, after %d bytes: %v", n, from.err)}
	}
	r.end(u)
	return err
}

// checkRange refuses a chunk that does not follow those that have arrived.
func (u *upload) checkRange(w http.ResponseWriter, req *http.Request) error {
	text := req.Header.Get("Content-Range")
	if text == "" {
		return nil // Docker and Buildah send all in one request
	}
	start, length, err := parseRange(text)
	if err != nil {
		return fault{http.StatusBadRequest, codeUploadInvalid, err.Error()}
	}
	if start != u.size || req.ContentLength != length {
		u.describe(w)
		return fault{http.StatusRequestedRangeNotSatisfiable, codeUploadInvalid, fmt.Sprintf("a chunk of %d bytes has the Content-Range %s, and %d bytes have arrived: continue after these", req.ContentLength, text, u.size)}
	}
	return nil
}

// commit makes a blob of an upload, which ends, also if it fails.
func (r *Registry) commit(w http.ResponseWriter, req *http.Request, u *upload, sum digest.Digest) error {
	err := u.writer.Commit(req.Context(), u.size, sum)
	r.end(u)
	switch {
	case errdefs.IsFailedPrecondition(err):
		return fault{http.StatusBadRequest, codeDigestInvalid, fmt.Sprintf("the content does not have the digest %s: push again", sum)}
	case err != nil && !errdefs.IsAlreadyExists(err):
		return err
	}
	created(w, u.repository, "blobs", sum)
	return nil
}

// created answers that an object is there.
func created(w http.ResponseWriter, repository, objects string, sum digest.Digest) {
	w.Header().Set("Location", "/v2/"+repository+"/"+objects+"/"+sum.String())
	w.Header().Set("Docker-Content-Digest", sum.String())
	w.WriteHeader(http.StatusCreated)
}

// body is the body of a request that must not fall silent, nor fill the disk.
type body struct {
	request io.Reader
	control *http.ResponseController
	space   func() error
	// unchecked is how many bytes have been read since the disk was looked at.
	unchecked int
	// err is why the request could not be read.
	err error
}

// checkEvery is how many bytes are written before the disk is looked at again. It must be less than
// the reserve.
const checkEvery = 8 << 20

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.unchecked >= checkEvery {
		if err := b.space(); err != nil {
			return 0, err
		}
		b.unchecked = 0
	}
	// A connection without deadlines ends when the client's process does.
	_ = b.control.SetReadDeadline(time.Now().Add(maxIdle))
	n, err := b.request.Read(p)
	b.unchecked += n
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

// checkSpace returns an error if the disk has no space left but the reserve.
func (r *Registry) checkSpace() error {
	var disk unix.Statfs_t
	if err := unix.Statfs(r.folder, &disk); err != nil {
		return fmt.Errorf("look at the disk of %s: %w", r.folder, err)
	}
	if disk.Bavail*uint64(disk.Bsize) < reserve {
		return errFull
	}
	return nil
}
