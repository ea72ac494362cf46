package sqldb

import (
	"context"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// Stats implements datastore.Datastore. It leaves out the used part of the size:
// the database would have to read the whole table for it.
func (d *Datastore) Stats(ctx context.Context) datastore.Stats {
	stats := datastore.Stats{Kind: strings.ToLower(d.target.dialect.title), Place: d.target.String()}
	if backend := d.backend.Load(); backend != nil {
		backend.meter.Add(&stats)
		// If the database does not answer, Health says why.
		stats.Size, _ = backend.number(ctx, d.target.dialect.size)
	}
	return stats
}

// Health implements datastore.Datastore. It asks the database.
func (d *Datastore) Health(ctx context.Context) datastore.Health {
	fault := d.faults.present()
	var health datastore.Health
	if backend := d.backend.Load(); backend != nil {
		began := time.Now()
		err := backend.db.PingContext(ctx)
		if err != nil {
			fault, _ = d.target.explain(err)
		}
		stats := backend.db.Stats()
		health.Connections = &datastore.Connections{Open: stats.OpenConnections, InUse: stats.InUse, Max: stats.MaxOpenConnections}
		if err == nil {
			health.Connections.Answer = time.Since(began)
		}
	}
	if fault != nil {
		health.Fault = fault.Error()
	}
	return health
}
