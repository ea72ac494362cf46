// Package s3 is as much of S3 as snapshots need, in memory, for tests.
package s3

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is an http.Handler with one bucket. It wants every request to be signed
// with AccessKey, but does not check the signature.
type Server struct {
	Bucket, AccessKey string
	// Careless makes it ignore the conditions of writes, as some servers do.
	Careless bool
	// Refusal is the code of S3 with which it refuses everything, or empty.
	Refusal string

	mu      sync.Mutex
	objects map[string]object
}

type object struct {
	data     []byte
	modified time.Time
}

// Keys returns the names of all objects, sorted.
func (s *Server) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// fault is S3's answer to what cannot be.
type fault struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_ = xml.NewEncoder(w).Encode(fault{Code: code, Message: "refused by the test: " + code})
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	authorization := r.Header.Get("Authorization")
	stored, found := s.objects[key]
	switch {
	case s.Refusal != "":
		fail(w, http.StatusForbidden, s.Refusal)
	case !strings.HasPrefix(authorization, "AWS4-HMAC-SHA256 Credential="+s.AccessKey+"/") || !strings.Contains(authorization, "Signature="):
		fail(w, http.StatusForbidden, "InvalidAccessKeyId")
	case bucket != s.Bucket:
		fail(w, http.StatusNotFound, "NoSuchBucket")
	case key == "" && r.Method == http.MethodGet:
		s.list(w, r)
	case r.Method == http.MethodPut && found && r.Header.Get("If-None-Match") == "*" && !s.Careless:
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
	case r.Method == http.MethodPut:
		s.put(w, r, key)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case !found:
		fail(w, http.StatusNotFound, "NoSuchKey")
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		w.Header().Set("ETag", etag(stored.data))
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", stored.modified, bytes.NewReader(stored.data))
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func (s *Server) put(w http.ResponseWriter, r *http.Request, key string) {
	body := io.Reader(r.Body)
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		body = unchunk(r.Body)
	}
	data, err := io.ReadAll(body)
	if err != nil {
		fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	if s.objects == nil {
		s.objects = map[string]object{}
	}
	s.objects[key] = object{data, time.Now()}
	w.Header().Set("ETag", etag(data))
}

func etag(data []byte) string {
	sum := md5.Sum(data)
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// unchunk returns what is in a body of Content-Encoding aws-chunked.
func unchunk(r io.Reader) io.Reader {
	read, write := io.Pipe()
	go func() {
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadString('\n')
			size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
			n, parseErr := strconv.ParseInt(size, 16, 64)
			if err == nil {
				err = parseErr
			}
			if err == nil && n > 0 {
				if _, err = io.CopyN(write, lines, n); err == nil {
					_, err = lines.Discard(2)
				}
			}
			if err != nil || n == 0 {
				write.CloseWithError(err)
				return
			}
		}
	}()
	return read
}

// listing is the answer to ListObjectsV2.
type listing struct {
	XMLName     xml.Name `xml:"ListBucketResult"`
	Name        string
	Prefix      string
	KeyCount    int
	MaxKeys     int
	IsTruncated bool
	Contents    []content
	// CommonPrefixes are folders.
	CommonPrefixes []prefix
}

type prefix struct{ Prefix string }

type content struct {
	Key          string
	LastModified string
	ETag         string
	Size         int
	StorageClass string
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	start := r.URL.Query().Get("prefix")
	answer := listing{Name: s.Bucket, Prefix: start, MaxKeys: 1000}
	folders := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(key, start)
		if !ok {
			continue
		}
		if folder, _, deeper := strings.Cut(rest, "/"); deeper { // which is what the delimiter is for
			if !folders[folder] {
				answer.CommonPrefixes = append(answer.CommonPrefixes, prefix{start + folder + "/"})
			}
			folders[folder] = true
			continue
		}
		o := s.objects[key]
		answer.Contents = append(answer.Contents, content{
			Key: key, LastModified: o.modified.UTC().Format("2006-01-02T15:04:05.000Z"), ETag: etag(o.data), Size: len(o.data), StorageClass: "STANDARD",
		})
	}
	answer.KeyCount = len(answer.Contents)
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprint(w, xml.Header)
	_ = xml.NewEncoder(w).Encode(answer)
}
