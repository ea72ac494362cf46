package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// The codes of the specification that this registry uses:
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#error-codes
const (
	codeBlobUnknown         = "BLOB_UNKNOWN"
	codeUploadInvalid       = "BLOB_UPLOAD_INVALID"
	codeUploadUnknown       = "BLOB_UPLOAD_UNKNOWN"
	codeDigestInvalid       = "DIGEST_INVALID"
	codeManifestBlobUnknown = "MANIFEST_BLOB_UNKNOWN"
	codeManifestInvalid     = "MANIFEST_INVALID"
	codeManifestUnknown     = "MANIFEST_UNKNOWN"
	codeNameInvalid         = "NAME_INVALID"
	codeNameUnknown         = "NAME_UNKNOWN"
	codeSizeInvalid         = "SIZE_INVALID"
	codeDenied              = "DENIED"
	codeUnsupported         = "UNSUPPORTED"
	codeTooManyRequests     = "TOOMANYREQUESTS"
	codeUnknown             = "UNKNOWN"
)

// fault is an error with its answer.
type fault struct {
	status        int
	code, message string
}

func (f fault) Error() string { return f.message }

var (
	errFull       = errors.New("no space left for images")
	unknownUpload = fault{http.StatusNotFound, codeUploadUnknown, "there is no such upload: it has ended, or had no request for " + maxIdle.String() + ". Push again"}
)

// explain returns the answer to an error. If the disk is full, the status is not 507 but one of the
// client's errors: Docker shows the message of these only, and does not try again.
func (r *Registry) explain(err error) error {
	var f fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, errFull), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault{http.StatusRequestEntityTooLarge, codeDenied, fmt.Sprintf("the disk of %s has no space left for this image: free some space there, or delete clusters that you no longer need with kedge cluster delete NAME", r.folder)}
	case errdefs.IsUnavailable(err):
		return fault{http.StatusConflict, codeUploadInvalid, "another request writes the same content: push again"}
	}
	return fault{http.StatusInternalServerError, codeUnknown, err.Error()}
}

// refuse answers with an error in the form of the specification.
func refuse(w http.ResponseWriter, err error) {
	var f fault
	if !errors.As(err, &f) {
		f = fault{http.StatusInternalServerError, codeUnknown, err.Error()}
	}
	body, err := json.Marshal(map[string]any{"errors": []map[string]string{{"code": f.code, "message": f.message}}})
	if err != nil {
		body = nil // strings can always be marshalled
	}
	header := w.Header()
	header.Del("Etag")
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // a client that has gone needs no answer
}
