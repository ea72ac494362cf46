package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestManifests pushes manifests that are right and wrong, lists their tags and deletes them.
func TestManifests(t *testing.T) {
	r := open(t, t.TempDir())
	name := clients(t, r)
	base := "http://" + name + "/v2/app"
	image := newImage(t, 10)
	manifest := image[2]
	put := func(reference string, text []byte, mediaType string) answer {
		t.Helper()
		return request(t, "PUT", base+"/manifests/"+reference, text, "Content-Type", mediaType)
	}
	want(t, request(t, "GET", base+"/tags/list", nil), http.StatusNotFound, codeNameUnknown)
	want(t, put("v1", manifest.text, manifest.MediaType), http.StatusNotFound, codeManifestBlobUnknown)
	push(t, name+"/app:v1", image...)
	for _, tag := range []string{"v3", "v2", "V2"} {
		want(t, put(tag, manifest.text, manifest.MediaType), http.StatusCreated, "")
	}
	for what, a := range map[string]answer{
		"not JSON":        put("bad", []byte("{"), manifest.MediaType),
		"nothing":         put("bad", []byte("{}"), manifest.MediaType),
		"null":            put("bad", []byte("null"), manifest.MediaType),
		"other type":      put("bad", manifest.text, ocispec.MediaTypeImageIndex),
		"no media type":   put("bad", []byte(`{"manifests":[]}`), ""),
		"version 1":       put("bad", []byte(`{"manifests":[]}`), "application/vnd.docker.distribution.manifest.v1+json"),
		"markup":          put("bad", []byte(`{"manifests":[]}`), "text/html"),
		"index as image":  put("bad", []byte(`{"manifests":[]}`), ocispec.MediaTypeImageManifest),
		"path as digest":  put("bad", []byte(`{"config":{"digest":"sha256:../../../names.json"}}`), manifest.MediaType),
		"weak digest":     put("bad", []byte(`{"config":{"digest":"md5:d41d8cd98f00b204e9800998ecf8427e"}}`), manifest.MediaType),
		"negative size":   put("bad", []byte(`{"config":{"digest":"`+image[1].Digest.String()+`","size":-1}}`), manifest.MediaType),
		"invalid tag":     put("..", manifest.text, manifest.MediaType),
		"path as tag":     put("..%2f..%2fnames.json", manifest.text, manifest.MediaType),
		"digest as sha1":  put("sha1:0", manifest.text, manifest.MediaType),
		"deep repository": request(t, "GET", base+"/_tags/manifests/..", nil),
	} {
		t.Log(what)
		if a.status != http.StatusBadRequest && a.status != http.StatusNotFound {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	want(t, put(digest.FromString("other").String(), manifest.text, manifest.MediaType), http.StatusBadRequest, codeDigestInvalid)
	long := append(bytes.TrimSuffix(manifest.text, []byte("}")), bytes.Repeat([]byte(" "), maxManifest)...)
	want(t, put("long", append(long, '}'), manifest.MediaType), http.StatusRequestEntityTooLarge, codeSizeInvalid)
	windows := newPart(manifest.MediaType, bytes.ReplaceAll(manifest.text, []byte(`"layers":[`), []byte(`"layers":[{"digest":"`+digest.FromString("x").String()+`","size":1,"urls":["https://example.com"]},`)))
	want(t, put(windows.Digest.String(), windows.text, manifest.MediaType), http.StatusCreated, "")

	tags := func(query string) (string, answer) {
		t.Helper()
		a := request(t, "GET", base+"/tags/list"+query, nil)
		var list struct{ Tags []string }
		if err := json.Unmarshal(a.body, &list); err != nil || a.status != http.StatusOK {
			t.Errorf("list tags: %d %s %v", a.status, a.body, err)
		}
		return strings.Join(list.Tags, " "), a
	}
	for query, wanted := range map[string]string{"": "V2 v1 v2 v3", "?n=2": "V2 v1", "?n=2&last=v1": "v2 v3", "?last=v11": "v2 v3", "?last=z": "", "?n=0": "", "?n=9": "V2 v1 v2 v3"} {
		if got, _ := tags(query); got != wanted {
			t.Errorf("tags%s: got %s, want %s", query, got, wanted)
		}
	}
	if _, a := tags("?n=2"); a.header.Get("Link") != `</v2/app/tags/list?last=v1&n=2>; rel="next"` {
		t.Errorf("got link %s", a.header.Get("Link"))
	}
	want(t, request(t, "GET", base+"/tags/list?n=-1", nil), http.StatusBadRequest, codeUnsupported)

	want(t, request(t, "DELETE", base+"/manifests/v3", nil), http.StatusAccepted, "")
	want(t, request(t, "DELETE", base+"/manifests/v3", nil), http.StatusNotFound, codeManifestUnknown)
	want(t, request(t, "HEAD", base+"/manifests/"+manifest.Digest.String(), nil), http.StatusOK, "")
	want(t, request(t, "DELETE", base+"/manifests/"+manifest.Digest.String(), nil), http.StatusAccepted, "")
	if got, _ := tags(""); got != "" {
		t.Errorf("got tags %s of a manifest that was deleted", got)
	}
	want(t, request(t, "GET", base+"/manifests/v1", nil), http.StatusNotFound, codeManifestUnknown)
	want(t, request(t, "GET", "http://"+name+"/v2/", nil), http.StatusOK, "")
}

// TestTooManyNames refuses one manifest more than there can be, and keeps the others.
func TestTooManyNames(t *testing.T) {
	r := open(t, t.TempDir())
	sum := digest.FromString("")
	full := repository{map[digest.Digest]string{sum: ""}, map[string]digest.Digest{}}
	for i := range maxNames - 1 {
		full.Tags[fmt.Sprint("v", i)] = sum
	}
	r.names.repositories["full"] = full
	if err := r.names.add(target{repository: "app", tag: "v1"}, sum, ""); !errors.Is(err, errTooMany) {
		t.Errorf("got %v", err)
	}
	if _, ok := r.names.repositories["app"]; ok {
		t.Error("the repository is there")
	}
	if err := r.names.remove(target{repository: "full", tag: "v1"}); err != nil {
		t.Error(err)
	}
	if err := r.names.add(target{repository: "full", tag: "v1"}, sum, ""); err != nil {
		t.Error(err)
	}
}
