// Command pauseimage writes an OCI image archive with one executable, pause.
//
//	pauseimage GOARCH EXECUTABLE ARCHIVE
package main

import (
	"fmt"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/scripts/ociimage"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: pauseimage GOARCH EXECUTABLE ARCHIVE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "pauseimage:", err)
		os.Exit(1)
	}
}

func run(arch, executable, archive string) error {
	pause, err := os.ReadFile(executable)
	if err != nil {
		return err
	}
	data, err := ociimage.Archive(assets.PauseImage, arch, ocispec.ImageConfig{
		// The user is nobody, as in upstream's image: holding the namespaces open
		// needs no rights.
		User:       "65535:65535",
		Entrypoint: []string{"/pause"},
	}, []ociimage.File{{Name: "pause", Mode: 0o755, Data: pause}})
	if err != nil {
		return err
	}
	return os.WriteFile(archive, data, 0o644)
}
