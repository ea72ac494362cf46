package cri

import (
	"os"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/scripts/ociimage"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/image"
	"github.com/kedge-dev/kedge/tests/harness/registry"
)

// The names of upstream's test images begin with these.
const (
	e2e     = "e2e-test-images/"
	staging = "k8s-staging-cri-tools/"
)

// fillRegistry fills a registry with the images of critest, made of Debian's busybox and nginx, and of Kubernetes' program
// nonewprivs. The registry stands in for all others, so the names do not begin with one.
//
//upstream:relies-on sigs.k8s.io/cri-tools/pkg/validate/consts.go
func fillRegistry(t *testing.T, r *registry.Registry) {
	t.Helper()
	harness.Need(t, "nginx-light", "procps", "util-linux")
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	add := func(archive string, err error) func(names ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		return func(names ...string) {
			t.Helper()
			for _, name := range names {
				r.Add(t, name, data)
			}
		}
	}
	busybox := func(config ocispec.ImageConfig, more ...ociimage.File) func(names ...string) {
		t.Helper()
		return add(image.WithBusybox(repository, "kedge.test/critest:1", config, more...))
	}
	mark := func(text string) ociimage.File { return ociimage.File{Name: "mark", Mode: 0o644, Data: []byte(text)} }

	shell := ocispec.ImageConfig{Cmd: []string{"sh"}}
	// Debian's busybox lacks two of the programs that tests call.
	programs, err := image.Programs("/usr/bin/ipcs", "/usr/bin/pgrep")
	if err != nil {
		t.Fatal(err)
	}
	busybox(shell, programs...)(e2e + "busybox:1.29-2")
	busybox(shell, mark("tags"))(staging+"test-image-tags:1", staging+"test-image-tags:2", staging+"test-image-tags:3")
	busybox(shell, mark("tag"))(staging+"test-image-tag:test", staging+"test-image-tag:all")
	for _, name := range []string{"1", "2", "3", "latest"} {
		busybox(shell, mark(name))(staging + "test-image-" + name + ":latest")
	}
	for name, user := range map[string]string{"uid": "1002", "username": "www-data", "uid-group": "1003:1004", "username-group": "www-data:1004"} {
		busybox(ocispec.ImageConfig{Cmd: shell.Cmd, User: user})(staging + "test-image-user-" + name + ":latest")
	}
	busybox(ocispec.ImageConfig{Cmd: shell.Cmd, User: "1000"},
		ociimage.File{Name: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\ndefault-user:x:1000:1000::/home:/bin/sh\n")},
		ociimage.File{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\ndefault-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n")},
	)(staging + "test-image-predefined-group:latest")
	// The tests only want this one to answer at port 80, and to have logged its name.
	busybox(ocispec.ImageConfig{Cmd: []string{"sh", "-c", "echo httpd; exec httpd -f -h /tmp"}},
		ociimage.File{Name: "tmp/index.html", Mode: 0o644, Data: []byte("httpd\n")},
	)(e2e + "httpd:2.4.39-4")
	add(image.Nginx(repository, "kedge.test/nginx:80", 80))(e2e + "nginx:1.14-2")
	add(image.Nginx(repository, "kedge.test/nginx:12003", 12003))(staging + "hostnet-nginx-" + architecture + ":latest")

	program, err := image.Build(repository, "k8s.io/kubernetes/test/images/nonewprivs")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	busybox(ocispec.ImageConfig{Entrypoint: []string{"/nnp"}}, ociimage.File{Name: "nnp", Mode: 0o4755, Data: text})(e2e + "nonewprivs:1.3")

	pause, err := os.ReadFile("../../build/" + architecture + "/pause")
	if err != nil {
		t.Fatal(err)
	}
	busybox(ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, ociimage.File{Name: "pause", Mode: 0o755, Data: pause})("pause:3.9")
}
