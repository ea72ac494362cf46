package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// Stats implements datastore.Datastore.
func (d *Datastore) Stats(ctx context.Context) datastore.Stats {
	stats := datastore.Stats{Kind: d.Kind(), Place: d.config.Dir, Disk: datastore.DiskOf(d.config.Dir)}
	for _, file := range []string{stateFile, stateFile + "-wal"} {
		size, _ := fileSize(filepath.Join(d.config.Dir, file))
		stats.Size += size
	}
	if d.api.Load() == nil {
		return stats // there may be no backend yet
	}
	d.backend.meter.Add(&stats)
	// The query fails after a stop. The other values are still true.
	_ = query(ctx, d.backend.reader.size, func(rows *sql.Rows) error { return rows.Scan(&stats.Used) })
	return stats
}

// Health implements datastore.Datastore.
func (d *Datastore) Health(context.Context) (health datastore.Health) {
	if d.api.Load() == nil {
		return health
	}
	if fault := d.backend.faults.present(); fault != nil {
		health.Fault = fault.Error()
	}
	return health
}
