package cri

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/kubeinit"
	"github.com/kedge-dev/kedge/internal/node/containerd"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
)

const (
	// argument is the first argument of this program if it is to run containerd.
	argument = "run-containerd"
	// ready is what it says when the CRI answers.
	ready = "the CRI answers"
	// dataDir is the data directory of the kedge that ran before on the host.
	dataDir = datadir.Dir("/var/lib/kedge")
	// registriesFile says where images come from.
	registriesFile = "/etc/kedge/registries.yaml"
)

// runContainerd runs containerd as a node of kedge does, without a kubelet, until SIGTERM. A kubelet would end the pods that
// it does not know.
func runContainerd() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	helpers, err := assets.Unpack(dataDir.Assets())
	if err != nil {
		return err
	}
	if err := os.Setenv("PATH", helpers.Bin+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
		return err
	}
	facts, err := host.Detect()
	if err != nil {
		return err
	}
	source, err := registries.New(registriesFile, nil, func(string) {})
	if err != nil {
		return err
	}
	return containerd.New(containerd.Config{
		Root:           dataDir.Containerd(),
		State:          datadir.ContainerdState,
		Socket:         datadir.ContainerdSocket,
		ConfigFile:     dataDir.ContainerdConfig(),
		DropIns:        dataDir.ContainerdDropIns(),
		CertsDir:       dataDir.RegistryCerts(),
		Source:         source,
		PauseArchive:   helpers.PauseArchive,
		PauseImage:     assets.PauseImage,
		ImagesDir:      dataDir.Images(),
		CNIBinDirs:     []string{helpers.Bin, datadir.CNIBinDir},
		CNIConfDir:     dataDir.CNIConf(),
		DefaultRuntime: "runc",
		Facts:          facts,
		Warn:           func(string) {},
		Verbosity:      &kubeinit.Verbosity{},
	}).Run(ctx, func() { fmt.Println(ready) })
}
