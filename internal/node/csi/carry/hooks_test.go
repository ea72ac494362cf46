package carry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containers are a runtime with two pods, one of which uses the volume v.
type containers struct {
	annotations map[string]string
	// ran are the commands, as they came.
	ran []string
}

func (*containers) ListContainers(context.Context, *cri.ListContainersRequest, ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	made := func(id, pod, name string) *cri.Container {
		return &cri.Container{Id: id, PodSandboxId: pod, Labels: map[string]string{containerLabel: name}}
	}
	return &cri.ListContainersResponse{Containers: []*cri.Container{
		made("other", "stranger", "main"), made("sidecar", "user", "sidecar"), made("main", "user", "main"), made("again", "user", "again"),
	}}, nil
}

func (*containers) ContainerStatus(_ context.Context, r *cri.ContainerStatusRequest, _ ...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	volume := map[string]string{"other": "v2", "main": "v", "again": "v"}[r.ContainerId]
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{Mounts: []*cri.Mount{
		{HostPath: "/etc/hosts"}, {HostPath: "/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/" + volume + "/mount"},
	}}}, nil
}

func (c *containers) PodSandboxStatus(_ context.Context, r *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error) {
	if r.PodSandboxId != "user" {
		return nil, errors.New("nobody should look at this pod")
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Metadata: &cri.PodSandboxMetadata{Namespace: "a", Name: "db"}, Annotations: c.annotations}}, nil
}

func (c *containers) ExecSync(_ context.Context, r *cri.ExecSyncRequest, _ ...grpc.CallOption) (*cri.ExecSyncResponse, error) {
	c.ran = append(c.ran, fmt.Sprintf("%s: %s (%ds)", r.ContainerId, strings.Join(r.Cmd, " "), r.Timeout))
	if r.Cmd[0] == "fail" {
		return &cri.ExecSyncResponse{ExitCode: 3, Stderr: []byte("no such database\n")}, nil
	}
	return &cri.ExecSyncResponse{}, nil
}

func TestHooks(t *testing.T) {
	const before, after = beforePrefix + commandName, afterPrefix + commandName
	for name, test := range map[string]struct {
		annotations map[string]string
		ran, fault  string
	}{
		"none":          {nil, "copy", ""},
		"a program":     {map[string]string{before: "/bin/stop"}, "main: /bin/stop (30s), copy", ""},
		"both":          {map[string]string{before: `["sh", "-c", "stop"]`, after: `["go"]`, afterPrefix + timeoutName: "90s"}, "main: sh -c stop (30s), copy, main: go (90s)", ""},
		"a container":   {map[string]string{before: "stop", beforePrefix + containerName: "sidecar"}, "sidecar: stop (30s), copy", ""},
		"a long wait":   {map[string]string{before: "stop", beforePrefix + timeoutName: "24h"}, "main: stop (600s), copy", ""},
		"a failure":     {map[string]string{before: "fail", after: "go"}, "main: fail (30s), main: go (30s)", `the command "fail" of pod a/db: it ended with status 3: no such database`},
		"it may fail":   {map[string]string{before: "fail", beforePrefix + onErrorName: "Continue", after: "go"}, "main: fail (30s), copy, main: go (30s)", ""},
		"fails after":   {map[string]string{after: "fail"}, "copy, main: fail (30s)", "no such database"},
		"not JSON":      {map[string]string{before: "[stop"}, "", "is neither a program nor a JSON array"},
		"an empty list": {map[string]string{before: "[]"}, "", "is neither a program nor a JSON array"},
		"no duration":   {map[string]string{before: "stop", beforePrefix + timeoutName: "soon"}, "", "is no duration"},
		"no container":  {map[string]string{before: "stop", beforePrefix + containerName: "gone"}, "", "names the container gone, which does not run"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &containers{annotations: test.annotations}
			h, err := hooksOf(t.Context(), c, "v")
			if err == nil {
				err = h.around(t.Context(), func() error {
					c.ran = append(c.ran, "copy")
					return nil
				})
			}
			if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
				t.Errorf("got error %v, want %q", err, test.fault)
			}
			if got := strings.Join(c.ran, ", "); got != test.ran {
				t.Errorf("ran %s, want %s", got, test.ran)
			}
		})
	}
}
