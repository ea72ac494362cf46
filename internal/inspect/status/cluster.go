package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// Cluster is all nodes of the cluster, as the API knows them, and the problems with them.
type Cluster struct {
	// Servers are HOST:PORT of the servers that serve the API.
	Servers []string `json:"servers,omitempty"`
	Nodes   []Node   `json:"nodes"`
	// Gateways are how clients reach Gateways and Ingresses.
	Gateways []Gateway `json:"gateways,omitempty"`
	Problems []Problem `json:"problems,omitempty"`
	// Notes are what a user should know even if nothing is wrong.
	Notes []string `json:"notes,omitempty"`
	// Fault says why nothing is known.
	Fault string `json:"fault,omitempty"`
}

// Node is a node of the cluster.
type Node struct {
	Name  string   `json:"name"`
	Ready bool     `json:"ready"`
	Roles []string `json:"roles,omitempty"`
	// Unschedulable says that a user has cordoned the node, so that it gets no new pods.
	Unschedulable bool   `json:"unschedulable,omitempty"`
	Version       string `json:"version"`
	Address       string `json:"address,omitempty"`
	// Heartbeat is when the cluster last heard from the node.
	Heartbeat time.Time `json:"heartbeat"`
}

// Gateway is a Service by which clients reach Gateways or Ingresses.
type Gateway struct {
	// Name is NAMESPACE/NAME of the Service.
	Name string `json:"name"`
	// Ports are such as 443/TCP.
	Ports     []string `json:"ports"`
	Addresses []string `json:"addresses"`
	// Nodes are the nodes whose gateways listen.
	Nodes []string `json:"nodes"`
	// Fault says why there is no address, or not each of them.
	Fault string `json:"fault,omitempty"`
}

// Problem is a fault, and what a user can do about it.
type Problem struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// readLog is what to do about a fault that the log says more about.
const readLog = "read the log of kedge: journalctl -u kedge, or the file of the setting log"

// Wrong returns all that is wrong with the components and the datastore of this process, and with the cluster.
func (r *Report) Wrong() (wrong []Problem) {
	for _, s := range r.Components {
		if s.State == component.Ready && s.Fault == "" {
			continue
		}
		what := fmt.Sprintf("component %s is %s", s.Name, s.State)
		if why := cmp.Or(s.Fault, s.Error); why != "" {
			what += ": " + why
		}
		wrong = append(wrong, Problem{What: what, Do: readLog})
	}
	if r.Datastore != nil && r.Datastore.Fault != "" {
		wrong = append(wrong, Problem{What: "the datastore: " + r.Datastore.Fault, Do: "see how it fares: kedge status --components. docs/datastores.md has more"})
	}
	if c := r.Cluster; c != nil {
		if c.Fault != "" {
			wrong = append(wrong, Problem{What: "nothing is known of the cluster: " + c.Fault, Do: readLog})
		}
		wrong = append(wrong, c.Problems...)
	}
	return wrong
}

// Notes returns what a user should know even if nothing is wrong.
func (r *Report) Notes() (notes []string) {
	if s := r.Storage; s != nil {
		for _, l := range s.Leftovers {
			notes = append(notes, fmt.Sprintf("left over: %s %s", l.Path, l.Reason))
		}
		if s.Fault != "" {
			notes = append(notes, "storage: "+s.Fault)
		}
	}
	if r.Cluster != nil {
		notes = append(notes, r.Cluster.Notes...)
	}
	return notes
}

// silentMembers returns problems with etcd that stop nothing yet. Problems that stop
// something are in Health.Fault.
func silentMembers(d *Datastore) (problems []Problem) {
	if d == nil || d.Etcd == nil || d.Fault != "" {
		return nil
	}
	for _, m := range d.Etcd.Members {
		if !m.Answers {
			problems = append(problems, Problem{
				What: fmt.Sprintf("etcd member %s does not answer", m.Name),
				Do:   "start kedge on that server. If the server is gone for good, run `kubectl delete node`, which also removes the etcd member",
			})
		}
	}
	return problems
}
