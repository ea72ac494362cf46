package why

import (
	"context"
	"fmt"
	"slices"
)

// Unwell returns a report of each object of a namespace that is not well, and how many objects were looked at. Without a namespace it looks at the
// whole cluster. Objects that belong to another one are left out, because the other one tells of them: the pods of a Deployment, the Jobs of a
// CronJob. The same cause is told once for each namespace. A kind that the API does not tell is named in unread. If the API
// tells none, that is the error.
func Unwell(ctx context.Context, clients Clients, namespace string) (unwell []*Report, looked int, unread []string, err error) {
	w := newWorld(ctx, clients)
	w.many = true
	told := map[string]bool{}
	var faults []error
	asked := 0
	for _, k := range known() {
		if k.global && namespace != "" {
			continue
		}
		asked++
		reports := k.all(w, namespace)
		if w.fault != nil {
			faults, w.fault = append(faults, w.fault), nil
			continue
		}
		looked += len(reports)
		for _, report := range reports {
			cause := report.Cause()
			if cause == nil || told[report.Object.Namespace+" "+cause.Do+cause.Rule] {
				continue
			}
			told[report.Object.Namespace+" "+cause.Do+cause.Rule] = true
			report.Self = nil // the caller may keep the report
			unwell = append(unwell, report)
		}
	}
	if ctx.Err() != nil {
		return nil, 0, nil, ctx.Err()
	}
	if len(faults) == asked {
		return nil, 0, nil, faults[0]
	}
	unread = w.unread()
	for _, fault := range faults {
		unread = append(unread, fmt.Sprintf("It is not known what else is wrong: %v.", fault))
	}
	return slices.Clip(unwell), looked, unread, nil
}
