package upgrades

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Plan is the custom resource: which kedge the nodes of the cluster shall run.
type Plan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PlanSpec   `json:"spec"`
	Status PlanStatus `json:"status,omitempty"`
}

// PlanSpec is what the user wants. It has exactly one of Version, Channel and File.
type PlanSpec struct {
	// Version is a release, such as v1.37.2+kedge.2.
	Version string `json:"version,omitempty"`
	// Channel is the URL of a text that has a version in its first line.
	Channel string `json:"channel,omitempty"`
	// File is the path of an executable on a server. SHA256 is its digest.
	File   string `json:"file,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	// Source is the URL of a folder of releases, by version. The default is where install.sh
	// gets releases.
	Source string `json:"source,omitempty"`

	// Concurrency is how many agents are upgraded at a time, 1 by default. Servers are always
	// upgraded one at a time, before the agents.
	Concurrency int32 `json:"concurrency,omitempty"`
	// NodeSelector chooses nodes. Without it the Plan is for all nodes.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Window is when nodes may begin an upgrade. Without it they may always.
	Window *Window `json:"window,omitempty"`
	// Cordon says that a node gets no new pods during its upgrade. Drain, that its pods are
	// evicted first.
	Cordon bool   `json:"cordon,omitempty"`
	Drain  *Drain `json:"drain,omitempty"`
}

// Window is a time of day on some days of the week.
type Window struct {
	// Days are such as monday or mon. Without any, the window is on each day.
	Days []string `json:"days,omitempty"`
	// StartTime and EndTime are such as 22:30. A window that ends before it starts lasts until
	// the next day.
	StartTime string `json:"startTime,omitempty"`
	EndTime   string `json:"endTime,omitempty"`
	// TimeZone is a name of the IANA database. The default is UTC.
	TimeZone string `json:"timeZone,omitempty"`
}

// Drain says how pods are evicted. Pods of DaemonSets stay.
type Drain struct {
	// TimeoutSeconds is how long the eviction may take, 300 by default. Then the Plan fails.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// Force says that pods without a controller are deleted, too.
	Force bool `json:"force,omitempty"`
	// DeleteEmptyDirData says that pods with volumes of the kind emptyDir are evicted, too.
	DeleteEmptyDirData bool `json:"deleteEmptyDirData,omitempty"`
}

// Phase is how far a Plan is.
type Phase string

// These are the phases.
const (
	// Resolving: the server looks for the version and gets the executables.
	Resolving Phase = "Resolving"
	// Waiting: no node may begin now. The message of the status says why.
	Waiting Phase = "Waiting"
	// Upgrading: at least one node is being upgraded.
	Upgrading Phase = "Upgrading"
	// Complete: all nodes run the version.
	Complete Phase = "Complete"
	// Stopped: a node failed, or the Plan cannot be done. It goes on when its spec changes.
	Stopped Phase = "Stopped"
)

// PlanStatus is what the controller has done.
type PlanStatus struct {
	// ObservedGeneration is the generation of the spec that the rest of the status is about.
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
	Phase              Phase  `json:"phase,omitempty"`
	Message            string `json:"message,omitempty"`
	// Version is what the spec comes to.
	Version string `json:"version,omitempty"`
	// Executables are by architecture, such as amd64.
	Executables map[string]Executable `json:"executables,omitempty"`
	Nodes       []NodeStatus          `json:"nodes,omitempty"`
	Conditions  []metav1.Condition    `json:"conditions,omitempty"`
}

// Executable is what nodes of one architecture get.
type Executable struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// NodeState is what the Plan has done with a node.
type NodeState string

// These are the states of a node.
const (
	// NodePending: it was not its turn yet.
	NodePending NodeState = "Pending"
	// NodeDraining: its pods are being evicted.
	NodeDraining NodeState = "Draining"
	// NodeOrdered: its server tells it to run the executable.
	NodeOrdered NodeState = "Ordered"
	// NodeUpgraded: it runs the version, and is Ready.
	NodeUpgraded NodeState = "Upgraded"
	// NodeFailed: it went back, or does not answer.
	NodeFailed NodeState = "Failed"
)

// NodeStatus is a node of a Plan.
type NodeStatus struct {
	Name string `json:"name"`
	// Architecture is the one of its Node, such as amd64.
	Architecture string    `json:"architecture,omitempty"`
	State        NodeState `json:"state"`
	// Order is the ID of its Order.
	Order   string `json:"order,omitempty"`
	Message string `json:"message,omitempty"`
	// Since is when the state began, or when the node told of a new stage.
	Since metav1.Time `json:"since,omitempty"`
}

// OrderFor returns what a Plan tells a node to run: nothing, unless the node is Ordered.
func (p *Plan) OrderFor(node string) Order {
	if p.Status.ObservedGeneration != p.Generation {
		return Order{}
	}
	for _, n := range p.Status.Nodes {
		executable, known := p.Status.Executables[n.Architecture]
		if n.Name == node && n.State == NodeOrdered && known {
			return Order{ID: n.Order, Version: p.Status.Version, SHA256: executable.SHA256, Size: executable.Size}
		}
	}
	return Order{}
}
