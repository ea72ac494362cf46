package agent

import (
	"fmt"
	"os"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/node/upgrade"
)

// newUpgrader returns what makes a node run the kedge that a Plan says.
func newUpgrader(cfg Config) (component.Component, error) {
	// The path that the process was started from, without symbolic links. Go has read it before
	// main, so it stays the same if the file is replaced.
	installed, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find executable: %w", err)
	}
	return upgrade.New(upgrade.Config{
		Orders:    cfg.Orders,
		Fetch:     cfg.Executable,
		Installed: installed,
		Own:       "/proc/self/exe",
		Version:   version.Version,
		Record:    cfg.Dir.Trial(),
		Trial:     cfg.Process.Trial,
		Client:    cfg.nodeClient(),
		Informers: cfg.Informers,
		NodeName:  cfg.Node.Name,
	}), nil
}
