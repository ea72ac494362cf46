package containerd

import (
	"context"
	"errors"
	"net/http"
	"testing"

	ociregistry "github.com/containerd/containerd/v2/core/transfer/registry"
)

// secrets are the credentials of a pod, by host.
type secrets map[string]string

func (s secrets) GetCredentials(_ context.Context, ref, host string) (ociregistry.Credentials, error) {
	if ref != "registry.test/app:1" {
		return ociregistry.Credentials{}, errors.New("asked for " + ref)
	}
	switch host {
	case "token.test":
		return ociregistry.Credentials{Secret: s[host]}, nil
	case "none.test":
		return ociregistry.Credentials{}, nil
	}
	return ociregistry.Credentials{Username: "pod", Secret: s[host]}, nil
}

func TestDescribe(t *testing.T) {
	image, err := ociregistry.NewOCIRegistry(t.Context(), "registry.test/app:1",
		ociregistry.WithHostDir("/certs.d"), ociregistry.WithHeaders(http.Header{"X-Test": {"yes"}}),
		ociregistry.WithCredentials(secrets{"registry.test": "password", "token.test": "token"}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pull, err := describe(ctx, image)
	if err != nil {
		t.Fatal(err)
	}
	if pull.Reference != "registry.test/app:1" || pull.HostDir != "/certs.d" || pull.Header.Get("X-Test") != "yes" {
		t.Errorf("got %+v", pull)
	}
	for host, want := range map[string][2]string{"registry.test": {"pod", "password"}, "token.test": {"", "token"}, "none.test": {"", ""}} {
		user, secret, err := pull.Credentials(host)
		if got := [2]string{user, secret}; err != nil || got != want {
			t.Errorf("%s: got %v, %v", host, got, err)
		}
	}
	cancel()
	if _, _, err := pull.Credentials("registry.test"); err == nil {
		t.Error("Credentials returned a password after the pull")
	}
}

func TestDescribeWithoutCredentials(t *testing.T) {
	image, err := ociregistry.NewOCIRegistry(t.Context(), "registry.test/app:1")
	if err != nil {
		t.Fatal(err)
	}
	pull, err := describe(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	if user, secret, err := pull.Credentials("registry.test"); user != "" || secret != "" || err != nil {
		t.Errorf("got %q, %q, %v", user, secret, err)
	}
}

func TestFullName(t *testing.T) {
	for name, want := range map[string]string{
		"registry.test/app:1": "registry.test/app:1",
		"app:1":               "docker.io/library/app:1",
		"team/app":            "docker.io/team/app:latest",
		"latest":              "",
		"1.0":                 "",
		"a b:1":               "",
	} {
		if got := fullName(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
