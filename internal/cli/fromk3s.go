package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/inspect/fromk3s"
)

// fromFlag names an installation of k3s.
const fromFlag = "from"

// The exit status of check-config --from if something cannot work, and if something
// changes.
const (
	statusCannot  = 1
	statusChanges = 2
)

// checkK3s says what becomes of an installation of k3s.
func checkK3s(c *cli.Context) error {
	var cluster *rest.Config
	if path := c.String(kubeconfigFlag); path != "" {
		var err error
		if cluster, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
			return fmt.Errorf("read kubeconfig: %w", err)
		}
	}
	found, err := fromk3s.Look(c.Context, c.String(fromFlag), cluster)
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: run this command with sudo", err)
	}
	if err != nil && len(found) == 0 {
		return err
	}
	if found == nil {
		found = []fromk3s.Finding{}
	}
	if err := errors.Join(err, printAs(c.App.Writer, c.String(outputFlag), found, func(w io.Writer) error { return printFindings(w, found) })); err != nil {
		return err
	}
	switch fromk3s.Worst(found) {
	case fromk3s.Cannot:
		return cli.Exit("some of this k3s cannot work with kedge: see the lines that begin with cannot", statusCannot)
	case fromk3s.Changes:
		return cli.Exit("some of this k3s changes with kedge: see the lines that begin with changes", statusChanges)
	case fromk3s.Works:
	}
	return nil
}

func printFindings(w io.Writer, found []fromk3s.Finding) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESULT\tWHERE\tWHAT\tWHAT CHANGES, OR WHAT TO DO")
	for _, f := range found {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Result, f.Source, f.Name, f.Says)
	}
	return table.Flush()
}
