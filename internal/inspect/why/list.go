package why

import (
	"context"
	"slices"
)

// Unwell returns a report of each object of a namespace that is not well, and how many objects were looked at. Without a namespace it looks at the
// whole cluster. Objects that belong to another one are left out, because the other one tells of them: the pods of a Deployment, the Jobs of a
// CronJob. The same cause is told once for each namespace.
func Unwell(ctx context.Context, clients Clients, namespace string) (unwell []*Report, looked int, unread []string, err error) {
	w := newWorld(ctx, clients)
	w.many = true
	told := map[string]bool{}
	for _, k := range known() {
		if k.global && namespace != "" {
			continue
		}
		reports := k.all(w, namespace)
		looked += len(reports)
		for _, report := range reports {
			cause := report.Cause()
			if cause == nil || told[report.Object.Namespace+" "+cause.Do+cause.Rule] {
				continue
			}
			told[report.Object.Namespace+" "+cause.Do+cause.Rule] = true
			unwell = append(unwell, report)
		}
	}
	return slices.Clip(unwell), looked, w.unread(), w.fault
}
