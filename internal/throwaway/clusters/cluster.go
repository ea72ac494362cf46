// Package clusters keeps the records of the throw-away clusters of a machine: their names, their
// addresses, whether they run, and what a killed one has left. `kedge run` and `kedge cluster` call it,
// and the keeper of a cluster.
package clusters

import (
	"fmt"
	"net/netip"
	"regexp"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// Cluster is what is known about a cluster before it starts. It does not change afterwards.
type Cluster struct {
	Name string `json:"name"`
	// Temporary says that the cluster ends with its keeper: everything is in memory, and nothing stays.
	Temporary bool `json:"temporary,omitempty"`
	// Nodes is how many nodes there are. The first Servers of them are servers, the others are agents.
	// There are none with APIOnly.
	Nodes   int `json:"nodes,omitempty"`
	Servers int `json:"servers,omitempty"`
	// APIOnly says that there is only a control plane, at a port of the machine's loopback.
	APIOnly bool `json:"apiOnly,omitempty"`
	// Data is the data directory of a server without nodes, or empty for an empty one. The server only shows what is there: it runs no
	// controllers.
	Data string `json:"data,omitempty"`
	// Config is the text of a configuration file for every node, or empty.
	Config string `json:"config,omitempty"`
	// Published are ports of the machine that lead to the first node.
	Published []Published `json:"published,omitempty"`
	// Registry is the port of the machine's loopback to which users push images, or 0 for none. Only root
	// and the user with the ID Owner can use it.
	Registry uint16 `json:"registry,omitempty"`
	Owner    int    `json:"owner,omitempty"`
	// Subnet is the number of the cluster's network: see Addresses.
	Subnet int `json:"subnet,omitempty"`
}

// Published is a port of the machine that leads to a port of the first node.
type Published struct {
	Listen netip.AddrPort `json:"listen"`
	Port   uint16         `json:"port"`
}

// String returns the text that ParsePublished reads.
func (p Published) String() string { return fmt.Sprintf("%s:%d", p.Listen, p.Port) }

// NodeName returns the name of a node. The first is number 1.
func (c Cluster) NodeName(number int) string {
	if number <= c.Servers {
		return fmt.Sprint("server-", number)
	}
	return fmt.Sprint("agent-", number-c.Servers)
}

// Addresses returns the addresses of the cluster's network. Nodes have their numbers, from 1 on.
func (c Cluster) Addresses() hosts.Subnet { return hosts.Subnet{V4: subnetPrefix(c.Subnet)} }

// Uplink is the number of the machine's own address in the network of a cluster.
const Uplink = 253

// MaxNodes is how many nodes a cluster can have.
const MaxNodes = 100

// Interface returns the name of the machine's interface in the cluster's network.
func (c Cluster) Interface() string { return fmt.Sprint("kedge-", c.Subnet) }

// Cgroup returns the path of the cgroup of the cluster, without a slash before it.
func (c Cluster) Cgroup() string { return cgroupOf(c.Name) }

func cgroupOf(name string) string { return "kedge-cluster-" + name }

// State says what a cluster does.
type State string

// The states of a cluster.
const (
	Starting State = "Starting"
	Ready    State = "Ready"
	Stopped  State = "Stopped"
)

// Status is what the keeper of a cluster writes down while it runs.
type Status struct {
	State State `json:"state"`
	// API is the URL of the API.
	API string `json:"api,omitempty"`
	// Keeper is the ID of the keeper's process, and FirstProcesses are those of the nodes, in their order.
	Keeper         int   `json:"keeper,omitempty"`
	FirstProcesses []int `json:"firstProcesses,omitempty"`
	// Devices are the numbers of the file systems in memory that hold volumes of the nodes.
	Devices []uint64 `json:"devices,omitempty"`
}

// validName is what the name of a cluster must be. The name is part of paths, of a cgroup, and of a
// kubeconfig.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName fails if a name cannot be that of a cluster.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("invalid cluster name %q: use at most 32 lower-case letters, digits and \"-\", such as dev or team-1", name)
	}
	return nil
}
