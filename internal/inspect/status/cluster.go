package status

import (
	"fmt"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// Cluster is all nodes, as the API knows them, and what is wrong with them.
type Cluster struct {
	// Servers are HOST:PORT of those that answer for the API.
	Servers  []string  `json:"servers,omitempty"`
	Nodes    []Node    `json:"nodes"`
	Problems []Problem `json:"problems,omitempty"`
	// Notes are what a user should know although nothing is wrong.
	Notes []string `json:"notes,omitempty"`
	// Fault says why nothing is known.
	Fault string `json:"fault,omitempty"`
}

// Node is a node of the cluster.
type Node struct {
	Name  string   `json:"name"`
	Ready bool     `json:"ready"`
	Roles []string `json:"roles,omitempty"`
	// Unschedulable says that it gets no new pods, as a user wants.
	Unschedulable bool   `json:"unschedulable,omitempty"`
	Version       string `json:"version"`
	Address       string `json:"address,omitempty"`
	// Heartbeat is when it was last heard of.
	Heartbeat time.Time `json:"heartbeat"`
}

// Problem is something that is wrong, and what a user can do.
type Problem struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// Well tells whether all is: the components and the datastore of this process, and
// the nodes of the cluster.
func (r *Report) Well() bool {
	for _, s := range r.Components {
		if s.State != component.Ready {
			return false
		}
	}
	return (r.Datastore == nil || r.Datastore.Fault == "") &&
		(r.Cluster == nil || r.Cluster.Fault == "" && len(r.Cluster.Problems) == 0)
}

// silentMembers are problems with etcd that stop nothing yet; those that do are
// Health.Fault.
func silentMembers(d *Datastore) (problems []Problem) {
	if d == nil || d.Etcd == nil || d.Fault != "" {
		return nil
	}
	for _, m := range d.Etcd.Members {
		if !m.Answers {
			problems = append(problems, Problem{
				What: fmt.Sprintf("etcd's member %s does not answer", m.Name),
				Do:   "start kedge there; if it is gone for good: kubectl delete node, which takes it out of etcd",
			})
		}
	}
	return problems
}
