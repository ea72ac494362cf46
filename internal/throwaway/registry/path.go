package registry

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
)

// kind is what a path stands for.
type kind int

const (
	isRoot kind = iota
	isTags
	isManifest
	isBlob
	isUploads
	isUpload
)

// target is what a request is about. All its fields have been checked.
type target struct {
	kind       kind
	repository string
	// tag is empty if the request names a manifest by digest.
	tag    string
	digest digest.Digest
	upload string
}

// maxName is how long the name of a repository can be, as most clients have it.
const maxName = 255

// The patterns of the specification: https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pulling-manifests
var (
	repositoryPattern = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	uploadPattern     = regexp.MustCompile(`^[A-Z2-7]{26}$`) // of rand.Text
	rangePattern      = regexp.MustCompile(`^([0-9]{1,18})-([0-9]{1,18})$`)
)

// parsePath returns what a path of the API stands for. The name of a repository can contain words such
// as "blobs", so the end of the path decides.
func parsePath(path string) (target, error) {
	rest, ok := strings.CutPrefix(path, "/v2")
	if ok && (rest == "" || rest == "/") {
		return target{kind: isRoot}, nil
	}
	parts := strings.Split(strings.TrimPrefix(rest, "/"), "/")
	n := len(parts)
	if !ok || rest[0] != '/' || n < 3 {
		return target{}, unknownPath(path)
	}
	t, last := target{}, parts[n-1]
	switch {
	case parts[n-2] == "uploads" && parts[n-3] == "blobs" && last == "":
		t.kind, n = isUploads, n-3
	case parts[n-2] == "uploads" && parts[n-3] == "blobs":
		t.kind, t.upload, n = isUpload, last, n-3
		if !uploadPattern.MatchString(last) {
			return target{}, unknownUpload
		}
	case parts[n-2] == "blobs" && last == "uploads":
		t.kind, n = isUploads, n-2
	case parts[n-2] == "blobs":
		t.kind, n = isBlob, n-2
		var err error
		if t.digest, err = parseDigest(last); err != nil {
			return target{}, err
		}
	case parts[n-2] == "tags" && last == "list":
		t.kind, n = isTags, n-2
	case parts[n-2] == "manifests":
		t.kind, n = isManifest, n-2
		if tagPattern.MatchString(last) {
			t.tag = last
			break
		}
		var err error
		if t.digest, err = parseDigest(last); err != nil {
			return target{}, fault{http.StatusBadRequest, codeManifestInvalid, fmt.Sprintf("%q is neither a tag nor a digest such as sha256:HEX", last)}
		}
	default:
		return target{}, unknownPath(path)
	}
	t.repository = strings.Join(parts[:n], "/")
	if len(t.repository) > maxName || !repositoryPattern.MatchString(t.repository) {
		return target{}, fault{http.StatusBadRequest, codeNameInvalid, fmt.Sprintf("invalid repository name %.300q: use at most %d lower-case letters, digits, \".\", \"_\", \"-\" and \"/\"", t.repository, maxName)}
	}
	return t, nil
}

func unknownPath(path string) error {
	return fault{http.StatusNotFound, codeUnsupported, fmt.Sprintf("this registry has nothing at %.300q", path)}
}

// parseDigest returns a digest, which must be of SHA-256.
func parseDigest(text string) (digest.Digest, error) {
	sum, err := digest.Parse(text)
	if err != nil || sum.Algorithm() != digest.SHA256 {
		return "", fault{http.StatusBadRequest, codeDigestInvalid, fmt.Sprintf("invalid digest %.300q: use sha256: and 64 hexadecimal digits", text)}
	}
	return sum, nil
}

// parseRange returns the first byte and the length of a Content-Range of an upload, which is START-END
// and includes END.
func parseRange(text string) (start, length int64, err error) {
	parts := rangePattern.FindStringSubmatch(text)
	if parts == nil {
		return 0, 0, fmt.Errorf("invalid Content-Range %.100q: use START-END", text)
	}
	start, startErr := strconv.ParseInt(parts[1], 10, 64)
	end, endErr := strconv.ParseInt(parts[2], 10, 64)
	if startErr != nil || endErr != nil || end < start {
		return 0, 0, fmt.Errorf("invalid Content-Range %.100q: use START-END", text)
	}
	return start, end - start + 1, nil
}
