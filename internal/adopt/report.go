package adopt

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// Report says what an adoption took and what it did not.
type Report struct {
	// Objects is how many objects were taken.
	Objects int
	// LeftOut are the objects that were not taken.
	LeftOut []LeftOut
	// Notes are sentences for the user.
	Notes []string
	// volumes is the folder of k3s's volumes of the class local-path, and uninstallDeletes
	// says that k3s's script deletes it.
	volumes          string
	uninstallDeletes bool
}

// LeftOut is an object that was not taken, and the reason.
type LeftOut struct{ Kind, Namespace, Name, Reason string }

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// Write writes the report for people.
func (r *Report) Write(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%d objects are taken with their resource versions.\n", r.Objects)
	if len(r.LeftOut) > 0 {
		fmt.Fprintf(&text, "\n%d objects are left out:\n", len(r.LeftOut))
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
		for _, o := range r.LeftOut {
			fmt.Fprintf(table, "%s\t%s\t%s\n", o.Kind, strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"), o.Reason)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "\n%s.\n", note)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// Next says what to do after an adoption, and how to go back.
func (r *Report) Next() string {
	keep := ""
	if r.uninstallDeletes {
		keep = " Do not run k3s-uninstall.sh while you need them: it deletes them."
	}
	return fmt.Sprintf(`
Start kedge now: each pod restarts once. Disable k3s, so that it does not start with the host (systemctl disable k3s).
To go back to k3s: stop kedge and its pods with `+"`kedge killall`"+`, and start k3s. k3s continues with its own state, as it was when it was stopped.
Volumes of the class local-path stay in %s, and both use the same files.%s
`, r.volumes, keep)
}

// writeReport puts the report beside the state.
func (a *adoption) writeReport(context.Context) error {
	a.report.volumes = a.k3s.volumes()
	a.report.uninstallDeletes = strings.HasPrefix(a.report.volumes, a.k3s.data+"/")
	slices.SortFunc(a.report.LeftOut, func(x, y LeftOut) int {
		return cmp.Or(cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	var text strings.Builder
	if err := a.report.Write(&text); err != nil {
		return err
	}
	return datadir.WriteFile(a.made.Adopted(), []byte(text.String()), 0o600)
}
