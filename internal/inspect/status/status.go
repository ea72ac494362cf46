// Package status describes what the parts of a running kedge do, for `kedge status`. The
// component Status answers, and Fetch asks it.
package status

import (
	"context"
	"os"
	"time"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
)

// Report is the state of one kedge process.
type Report struct {
	PID        int                `json:"pid"`
	Version    string             `json:"version"`
	Node       string             `json:"node"`
	Components []component.Status `json:"components"`
	// Datastore is nil on an agent.
	Datastore *Datastore `json:"datastore,omitempty"`
	// Backup is nil where there is none.
	Backup *backup.Status `json:"backup,omitempty"`
	// Storage is nil where there are no local volumes.
	Storage *Storage `json:"storage,omitempty"`
	// Cluster is nil on an agent.
	Cluster *Cluster `json:"cluster,omitempty"`
	// Tunnels are the nodes that have a tunnel to this server.
	Tunnels []string `json:"tunnels,omitempty"`
}

// Storage is the local volumes of a node.
type Storage struct {
	Volumes   []Volume   `json:"volumes"`
	Leftovers []Leftover `json:"leftovers,omitempty"`
	// Fault says why the list may be incomplete.
	Fault string `json:"fault,omitempty"`
}

// Volume is a volume, or a snapshot of one.
type Volume struct {
	Name string `json:"name"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// Claim is NAMESPACE/NAME, if it is known.
	Claim    string `json:"claim,omitempty"`
	Snapshot bool   `json:"snapshot,omitempty"`
}

// Leftover is a part of a volume that nothing will remove or repair by itself.
type Leftover struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Datastore is all that is known of the datastore.
type Datastore struct {
	datastore.Stats
	datastore.Health
}

// healthPatience is how long the datastore may take to report its health, because other
// servers are asked too.
const healthPatience = 5 * time.Second

// Config is what a Status has to know.
type Config struct {
	Node string
	// Components returns the states of all components.
	Components func() []component.Status
	// Datastore is nil on an agent.
	Datastore datastore.Datastore
	// Backup is nil where there is none.
	Backup func() backup.Status
	// Storage may be nil, or return nil, if there are no local volumes.
	Storage func(ctx context.Context) *Storage
	// Cluster is nil on an agent.
	Cluster func(ctx context.Context) *Cluster
	// Problems returns what is wrong besides what Cluster finds. It may be nil.
	Problems func(ctx context.Context) []Problem
	// Tunnels is nil on an agent.
	Tunnels func() []string
}

// Status is the component that answers `kedge status`. It is a localapi.Part.
type Status struct{ cfg Config }

// New makes the component.
func New(cfg Config) *Status { return &Status{cfg} }

// Name implements component.Component.
func (*Status) Name() string { return "status" }

// Run implements component.Component. It has nothing to do until it is asked.
func (*Status) Run(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return nil
}

// Routes implements localapi.Part, for `kedge status`.
func (s *Status) Routes() []localapi.Route {
	return []localapi.Route{localapi.Answer(localapi.Status, s.cfg.report)}
}

func (c *Config) report(ctx context.Context, _ localapi.Nothing) (Report, error) {
	report := Report{PID: os.Getpid(), Version: version.Version, Node: c.Node, Components: c.Components()}
	if c.Datastore != nil {
		ctx, cancel := context.WithTimeout(ctx, healthPatience)
		defer cancel()
		report.Datastore = &Datastore{c.Datastore.Stats(ctx), c.Datastore.Health(ctx)}
	}
	if c.Backup != nil {
		backup := c.Backup()
		report.Backup = &backup
	}
	if c.Storage != nil {
		report.Storage = c.Storage(ctx)
	}
	if c.Cluster != nil {
		report.Cluster = c.Cluster(ctx)
		report.Cluster.Problems = append(report.Cluster.Problems, silentMembers(report.Datastore)...)
		if b := report.Backup; b != nil && b.Fault != "" {
			report.Cluster.Problems = append(report.Cluster.Problems, Problem{What: "changes are not in the backup " + b.Location, Do: b.Fault})
		}
		if b := report.Backup; b != nil && b.Differs != "" {
			report.Cluster.Problems = append(report.Cluster.Problems, Problem{What: "the backup " + b.Location + " was not verified", Do: b.Differs})
		}
		if c.Problems != nil {
			report.Cluster.Problems = append(report.Cluster.Problems, c.Problems(ctx)...)
		}
	}
	if c.Tunnels != nil {
		report.Tunnels = c.Tunnels()
	}
	return report, nil
}

// Fetch asks the kedge that runs on this host for its report. Its errors are those of
// localapi.Ask.
func Fetch(ctx context.Context, kedge *localapi.Client) (*Report, error) {
	report, err := localapi.Ask[Report](ctx, kedge, localapi.Status, nil)
	if err != nil {
		return nil, err
	}
	return &report, nil
}
