package agent

import (
	"fmt"
	"os"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/nodestream"
	"github.com/kedge-dev/kedge/internal/node/upgrade"
)

// upgrader makes the node run the kedge that a Plan says.
func (n *node) upgrader() component.Component {
	// The path that the process was started from, without symbolic links. Go has read it before
	// main, so it stays the same if the file is replaced.
	installed, err := os.Executable()
	if err != nil {
		n.faults = append(n.faults, fmt.Errorf("find executable: %w", err))
	}
	return upgrade.New(upgrade.Config{
		Orders:    follow(n, nodestream.Orders(), n.Server.Orders),
		Fetch:     n.Executable,
		Installed: installed,
		Own:       "/proc/self/exe",
		Version:   version.Version,
		Record:    n.Dir.Trial(),
		Trial:     n.Process.Trial,
		Client:    n.client(),
		Informers: n.API.Informers,
		NodeName:  n.Node.Name,
	})
}
