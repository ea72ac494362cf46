package backup

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// register adds the metrics. A server that does not write the backup has zeros.
func (b *Backup) register() {
	if b.cfg.Metrics == nil {
		return
	}
	age := func(at time.Time) float64 {
		if at.IsZero() {
			return 0
		}
		return b.cfg.Now().Sub(at).Seconds()
	}
	for _, m := range []struct {
		name, help string
		value      func(Status) float64
	}{
		{"kedge_backup_newest_age_seconds", "How long ago the newest entry of the backup was written.", func(s Status) float64 { return age(s.Newest) }},
		{"kedge_backup_waiting_seconds", "How long the oldest change has waited that is not in the backup, or 0.", func(s Status) float64 { return age(s.Waiting) }},
		{"kedge_backup_verified_age_seconds", "How long ago the backup was last read and found to have the state of the cluster.", func(s Status) float64 { return age(s.Verified) }},
		{"kedge_backup_size_bytes", "Size of the last base of the backup and of the changes since, in bytes.", func(s Status) float64 { return float64(s.Size) }},
		{"kedge_backup_failing", "1 if the backup cannot be written, or was found not to have the state of the cluster, otherwise 0.", func(s Status) float64 {
			if s.Fault != "" || s.Differs != "" {
				return 1
			}
			return 0
		}},
	} {
		b.cfg.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.name, Help: m.help}, func() float64 { return m.value(b.Status()) }))
	}
}
