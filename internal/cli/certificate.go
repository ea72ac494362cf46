package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/renewal"
	"github.com/kedge-dev/kedge/internal/cluster/rotation"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

func certificateCommand() *cli.Command {
	return &cli.Command{
		Name:  "certificate",
		Usage: "check and replace the certificates of this host's server or agent",
		Subcommands: []*cli.Command{{
			Name:   "check",
			Usage:  "list the certificates. The exit status is 1 if one has expired or expires within 90 days; a running kedge renews them before that",
			Flags:  serverFlags(formatFlag()),
			Action: withConfig(checkCertificates),
		}, {
			Name:   "rotate",
			Usage:  "replace all certificates that the authorities have signed, and their keys, now and without a restart",
			Flags:  runningFlags(nil),
			Before: noArguments,
			Action: byRunning(rotateCertificates),
		}, {
			Name:  "rotate-ca",
			Usage: "replace the cluster's authorities and the key of its service accounts, in two steps: first without --finish, then with it",
			Flags: serverFlags(administrator(),
				&cli.BoolFlag{Name: finishFlag, Usage: "second step: drop the old authorities, if nothing needs them any more"},
				&cli.BoolFlag{Name: ignorePodsFlag, Usage: "with --finish: drop them even if running pods may know only the old authority"}),
			Action: withConfig(rotateCA),
		}},
	}
}

const (
	finishFlag     = "finish"
	ignorePodsFlag = "ignore-pods"
)

func checkCertificates(c *cli.Context, cfg *config.Config) error {
	listed, err := pki.List(datadir.Dir(cfg.DataDir), time.Now())
	err = errors.Join(err, printAs(c.App.Writer, c.String(outputFlag), listed, func(w io.Writer) error {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "FILE\tSUBJECT\tNAMES OR USE\tEXPIRES\tDAYS LEFT\tSTATUS")
		for _, l := range listed {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", l.File, l.Subject, l.NamesOrUsage(), l.Expires.Local().Format(time.DateTime), l.DaysLeft, l.Status)
		}
		return table.Flush()
	}))
	ending := 0
	for _, l := range listed {
		if l.Status != pki.StatusOK {
			ending++
		}
	}
	if ending > 0 {
		err = errors.Join(err, fmt.Errorf("%d of these certificates have expired, or expire within 90 days: start kedge, which renews them at once. "+
			"If kedge runs, its log says why it could not", ending))
	}
	return err
}

func rotateCertificates(c *cli.Context) error {
	files, err := renewal.Rotate(c.Context, local())
	for _, file := range files {
		fmt.Fprintln(c.App.Writer, file)
	}
	return err
}

func rotateCA(c *cli.Context, cfg *config.Config) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may replace the authorities: run this command with sudo")
	}
	if c.Bool(finishFlag) {
		client, _, err := connect(c)
		if err != nil {
			return err
		}
		if err := rotation.Finish(c.Context, local(), cfg, choice.KeepsSQLite(datadir.Dir(cfg.DataDir)), client, c.Bool(ignorePodsFlag)); err != nil {
			return err
		}
		fmt.Fprintln(c.App.Writer, `The end of the old authorities is prepared:
1. Restart kedge on each server, one after another: they drop them then; agents follow by themselves.
   Copies of the kubeconfig from before the first step, and tokens that begin with the old hash, are of no use from then on.
2. Run kubectl -n kube-system delete configmap extension-apiserver-authentication, which is made anew without them: aggregated APIs trust those in it.
3. Take a snapshot: those from before bring the old authorities back.`)
		return nil
	}
	dir := datadir.Dir(cfg.DataDir)
	token, err := rotation.Begin(c.Context, local(), dir, choice.KeepsSQLite(dir), time.Now())
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, `New authorities are prepared. Pods go on running through all of this:
1. Restart kedge on each server, one after another: they use them beside the old ones then; agents follow by themselves.
2. Replace copies of %s, which is written anew, and certificates that you have had signed.
   Further nodes need the token %s
3. Restart pods that call the API and read its authority only once, when they start.
4. Run kedge certificate rotate-ca --finish, which says who has not followed.
`, cfg.Server.WriteKubeconfig, token)
	return nil
}
