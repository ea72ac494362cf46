package registry

import (
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
)

const someDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// FuzzPath takes paths of requests. A path that is accepted names an object without ways out of its
// place, and is the only path of that object, except for a slash at the end.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"", "/", "/v2", "/v2/", "/v2/app/tags/list", "/v2/a/b/manifests/v1", "/v2/app/manifests/" + someDigest, "/v2/app/blobs/" + someDigest,
		"/v2/app/blobs/uploads", "/v2/app/blobs/uploads/", "/v2/app/blobs/uploads/ABCDEFGHIJKLMNOPQRSTUVWXYZ",
		"/v2/../manifests/..", "/v2//manifests/v1", "/v2/blobs/uploads/", "/v2/a/blobs/uploads/blobs/uploads/", "/v2/a\n/tags/list", "/v20/a/tags/list",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		got, err := parsePath(path)
		if err != nil {
			if got != (target{}) {
				t.Errorf("%q is refused, and gives %v", path, got)
			}
			return
		}
		var again string
		switch got.kind {
		case isRoot:
			again = "/v2"
		case isTags:
			again = "/v2/" + got.repository + "/tags/list"
		case isManifest:
			again = "/v2/" + got.repository + "/manifests/" + got.tag + got.digest.String()
		case isBlob:
			again = "/v2/" + got.repository + "/blobs/" + got.digest.String()
		case isUploads:
			again = "/v2/" + got.repository + "/blobs/uploads"
		case isUpload:
			again = "/v2/" + got.repository + "/blobs/uploads/" + got.upload
		}
		if again != strings.TrimSuffix(path, "/") {
			t.Errorf("%q is taken for %q", path, again)
		}
		for _, text := range []string{got.repository, got.tag, got.upload} {
			if strings.Contains(text, "..") || strings.ContainsAny(text, "\\%?#\x00\n ") && !strings.Contains(got.tag, "..") || strings.HasPrefix(text, "/") || strings.HasPrefix(text, ".") {
				if text != got.tag || strings.ContainsAny(text, "/\\\x00") || strings.HasPrefix(text, ".") {
					t.Errorf("%q gives %q", path, text)
				}
			}
		}
		if got.digest != "" && (got.digest.Validate() != nil || len(got.digest) != len(someDigest)) {
			t.Errorf("%q gives the digest %q", path, got.digest)
		}
	})
}

// FuzzRange takes values of Content-Range. One that is accepted is written in the same way, apart from
// zeros in front.
func FuzzRange(f *testing.F) {
	for _, text := range []string{"", "0-0", "5-9", "9-5", "-1-2", "0-999999999999999999", "0-9999999999999999999", "bytes 0-1/2", "0-"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		start, length, err := parseRange(text)
		if err != nil {
			return
		}
		first, last, _ := strings.Cut(text, "-")
		trim := func(s string) string { return strings.TrimLeft(s[:len(s)-1], "0") + s[len(s)-1:] }
		if start < 0 || length < 1 || trim(first) != strconv.FormatInt(start, 10) || trim(last) != strconv.FormatInt(start+length-1, 10) {
			t.Errorf("%q gives %d, %d", text, start, length)
		}
	})
}

// FuzzManifest takes manifests. All blobs of one that is accepted have digests of SHA-256, and it has
// one media type.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"config":{"digest":"`+someDigest+`"},"layers":[{"digest":"`+someDigest+`","urls":["x"]}]}`), "application/vnd.oci.image.manifest.v1+json")
	f.Add([]byte(`{"manifests":[{"digest":"`+someDigest+`","size":-1}],"mediaType":"text/html"}`), "application/vnd.oci.image.index.v1+json; charset=utf-8")
	f.Add([]byte(`{"config":{"digest":"sha256:../../../.."}}`), "")
	f.Add([]byte("null"), ";")
	f.Fuzz(func(t *testing.T, text []byte, header string) {
		m, err := parseManifest(text)
		if err != nil {
			return
		}
		for _, blob := range m.blobs() {
			if len(blob.Digest) != len(someDigest) || strings.ContainsAny(blob.Digest.String(), "/.") || blob.Size < 0 {
				t.Errorf("%q has the blob %v", text, blob)
			}
		}
		mediaType, err := m.kind(header)
		if err == nil && (m.MediaType != "" && m.MediaType != mediaType || !strings.HasPrefix(mediaType, "application/vnd.")) {
			t.Errorf("%q, sent as %q, is %q", text, header, mediaType)
		}
	})
}

// FuzzMirror takes any registries.yaml. If kedge can read it, it can read the one with the mirror too,
// and everything else in it is as before.
func FuzzMirror(f *testing.F) {
	for _, text := range []string{
		"", "null", "mirrors:\n", "mirrors: {a: {endpoint: [b]}}\nconfigs: {}\n", "# only\n", "configs: {a: {auth: {username: b}}}", "{}", "---\n...\n", "mirrors: &a {}\n",
	} {
		f.Add(text)
	}
	file := filepath.Join(f.TempDir(), "registries.yaml")
	readable := func(t *testing.T, text []byte) bool {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := registries.New(file, nil, func(string) {})
		return err == nil
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "/dev") || strings.Contains(text, "/proc") || !readable(t, []byte(text)) {
			return // kedge would read the files that the text names
		}
		got, err := Mirror([]byte(text), 32000, keeper)
		if err != nil {
			return
		}
		var before, after map[string]map[string]any
		if yaml.Unmarshal([]byte(text), &before) != nil {
			return
		}
		if err := yaml.Unmarshal(got, &after); err != nil || !readable(t, got) {
			t.Fatalf("%q becomes %q: %v", text, got, err)
		}
		const name = "localhost:32000"
		if after["mirrors"][name] == nil {
			t.Errorf("%q becomes %q without the mirror", text, got)
		}
		delete(after["mirrors"], name)
		for _, all := range []map[string]map[string]any{before, after} {
			for key, section := range all {
				if len(section) == 0 {
					delete(all, key)
				}
			}
		}
		if len(before)+len(after) > 0 && !reflect.DeepEqual(before, after) {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}
