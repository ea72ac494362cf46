package install

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestImage applies the Dockerfile to a bare Debian, and runs a server like a container of that image.
func TestImage(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	repository, root := debian(t)
	text, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Getenv("KEDGE_BINARY"))
	if err != nil {
		t.Fatal(err)
	}
	host := harness.NewNetwork(t).NewHostFrom(t, "container", root)
	newRelease(t, program).write(t, host, "/release")
	words := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "FROM":
			if rest != "debian:bookworm-slim" {
				t.Errorf("the image is based on %s, and the test is not", rest)
			}
		case "RUN":
			if mounted, ok := strings.CutPrefix(rest, "--mount=type=bind,target=/release "); ok {
				sh(t, host, mounted)
			}
		case "ENTRYPOINT", "CMD":
			var list []string
			if err := json.Unmarshal([]byte(rest), &list); err != nil {
				t.Fatalf("parse %s of the Dockerfile: %v", line, err)
			}
			words[instruction] = list
		}
	}
	if got := fmt.Sprint(words["ENTRYPOINT"], words["CMD"]); got != "[/usr/local/bin/kedge] [server]" {
		t.Fatalf("the image runs %s", got)
	}
	server := host.Command(t.Context(), words["ENTRYPOINT"][0], words["CMD"][0], "--kubelet-arg=cgroup-root="+host.Cgroup())
	var log strings.Builder
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 4*time.Minute, "a server in the image", func() error {
		output, err := host.Command(t.Context(), "/usr/local/bin/kubectl", "get", "--raw", "/readyz").CombinedOutput()
		if err == nil {
			output, err = host.Command(t.Context(), "/usr/local/bin/kedge", "status").CombinedOutput()
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, output)
		}
		return err
	})
	sh(t, host, "/usr/local/bin/kedge killall")
	if err := server.Wait(); err != nil {
		t.Errorf("the server ended: %v\n%s", err, log.String())
	}
}
