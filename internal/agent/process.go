package agent

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/kubeinit"
	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/node/dns"
)

// Process is what the libraries of a node keep for the whole process. Kubernetes, CoreDNS
// and containerd are each made to be alone in a process.
//
// SetUp makes it. These parts set other things of the process, each at one place and
// once:
//
//	base/logging                the loggers of logrus and the standard library
//	cli/translations            kubectl's texts, before main
//	agent/process.go            the mask of new files' modes
//	agent/environment.go        PATH, NO_PROXY and WIREGUARD_KEY_FILE
//	node/containerd             containerd's list of plugins and its folder for temporary mounts
//	node/lowpower               the garbage collector's settings
//	controlplane/apiserver      Kubernetes's feature gates
//	controlplane/addons/helm    the name that Helm writes as
type Process struct {
	// Phase must be told when the node is ready and when it begins to stop.
	Phase *kubeinit.Phase
	// Verbosity is the verbosity of Kubernetes's code.
	Verbosity *kubeinit.Verbosity
	// Trial is set if this is a new executable that has to prove itself.
	Trial *trial.Child
	// DNS are the directives of CoreDNS that the DNS of a node uses.
	DNS *dns.Plugins
}

// SetUp prepares the process for the libraries of servers and agents. The cli package
// calls it once, before Run of either: CoreDNS does not take a second call.
func SetUp(log config.Log) (*Process, error) {
	// containerd makes the folders of containers for all users to pass through, and the
	// mask of a service (systemd's UMask) could forbid that.
	unix.Umask(0o022)
	phase, verbosity, err := kubeinit.Setup(log)
	if err != nil {
		return nil, fmt.Errorf("set up Kubernetes's libraries: %w", err)
	}
	plugins, err := dns.Register()
	if err != nil {
		return nil, fmt.Errorf("set up CoreDNS: %w", err)
	}
	return &Process{Phase: phase, Verbosity: verbosity, DNS: plugins}, nil
}
