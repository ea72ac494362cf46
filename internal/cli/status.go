package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// componentsFlag makes `kedge status` print also what is well.
const componentsFlag = "components"

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "say what is wrong with the kedge that runs on this host, and on a server with the cluster, and what to do. The exit status is 1 if something is wrong",
		Flags: []cli.Flag{
			formatFlag(),
			&cli.BoolFlag{Name: componentsFlag, Usage: "also show the components, the datastore, the backup, the volumes of this host, the nodes and the gateways"},
			&cli.BoolFlag{Name: "local", Usage: "ignore the other nodes, also for the exit status"},
		},
		Before: noArguments,
		Action: func(c *cli.Context) error {
			report, err := status.Fetch(c.Context, local())
			if err != nil {
				return err
			}
			if c.Bool("local") {
				report.Cluster = nil
			}
			err = printAs(c.App.Writer, c.String(outputFlag), report, func(w io.Writer) error {
				if err := printStatus(w, report, c.Bool(componentsFlag), time.Now()); err != nil || report.Cluster == nil {
					return err
				}
				return printObjects(c.Context, w)
			})
			if err != nil {
				return fmt.Errorf("print status: %w", err)
			}
			if len(report.Wrong()) > 0 {
				return cli.Exit("", 1)
			}
			return nil
		},
	}
}

// printStatus prints what is wrong, and the rest if that is wanted.
func printStatus(w io.Writer, report *status.Report, whole bool, now time.Time) error {
	wrong := report.Wrong()
	verdict := "all is well"
	if len(wrong) > 0 {
		verdict = "something is wrong"
	}
	fmt.Fprintf(w, "kedge %s on node %s, process %d: %s\n", report.Version, report.Node, report.PID, verdict)
	for _, p := range wrong {
		fmt.Fprintf(w, "\nwrong: %s\nto do: %s\n", p.What, p.Do)
	}
	for _, note := range report.Notes() {
		fmt.Fprintf(w, "\nnote: %s\n", note)
	}
	if !whole {
		return nil
	}
	return printParts(w, report, now)
}

// objectsPatience is how long `kedge status` looks at the objects of the cluster.
const objectsPatience = 10 * time.Second

// objectsShown is how many objects `kedge status` names.
const objectsShown = 10

// printObjects names objects of the cluster that do not work. They are their owners' work, so they change nothing of the exit status.
func printObjects(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, objectsPatience)
	defer cancel()
	path := serverKubeconfig()
	if path == "" {
		return nil // The kubeconfig that kubectl finds may be that of another cluster.
	}
	cfg, _, err := readKubeconfig(path)
	if err != nil {
		return err
	}
	clients, err := clientsOf(cfg)
	if err != nil {
		return err
	}
	unwell, _, _, err := why.Unwell(ctx, clients, "")
	if err != nil {
		fmt.Fprintf(w, "\nnote: the objects of the cluster were not looked at: %v\n", err)
		return nil
	}
	if len(unwell) == 0 {
		return nil
	}
	fmt.Fprintln(w, "\nThese objects of the cluster do not work. `kedge why --all-namespaces` says what to do:")
	for _, r := range unwell[:min(objectsShown, len(unwell))] {
		fmt.Fprintf(w, "  %s: %s\n", objectName(r), r.Cause().Says)
	}
	if more := len(unwell) - objectsShown; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
	return nil
}

// printParts prints tables of all that is known.
func printParts(w io.Writer, report *status.Report, now time.Time) error {
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "COMPONENT\tSTATE\tSINCE\tLAST ERROR")
	for _, s := range report.Components {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Name, s.State, now.Sub(s.Since).Truncate(time.Second), cmp.Or(s.Error, s.Fault))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if report.Datastore != nil {
		fmt.Fprintln(w)
		table = tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		printDatastore(table, report.Datastore, now)
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if b := report.Backup; b != nil {
		fmt.Fprintf(w, "\nbackup: %s\n", backupText(b, now))
	}
	if s := report.Storage; s != nil && len(s.Volumes) > 0 {
		fmt.Fprintln(w)
		if err := printVolumes(w, s.Volumes); err != nil {
			return err
		}
	}
	if report.Cluster != nil {
		fmt.Fprintln(w)
		return printCluster(w, report.Cluster, now)
	}
	return nil
}

// backupText says how old the backup is.
func backupText(b *backup.Status, now time.Time) string {
	text := b.Location
	if !b.Newest.IsZero() {
		text += fmt.Sprintf(", %s, newest change written %s ago", byteSize(b.Size), now.Sub(b.Newest).Truncate(time.Second))
	}
	if !b.Verified.IsZero() {
		text += fmt.Sprintf(", verified %s ago", now.Sub(b.Verified).Truncate(time.Second))
	}
	if !b.Waiting.IsZero() {
		text += fmt.Sprintf(", a change waits for %s", now.Sub(b.Waiting).Truncate(time.Second))
	}
	return text
}

// printCluster prints a line for each node, and for each way of clients to Gateways.
func printCluster(w io.Writer, c *status.Cluster, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if len(c.Nodes) > 0 {
		fmt.Fprintln(table, "NODE\tSTATE\tROLES\tVERSION\tADDRESS\tHEARD OF")
	}
	for _, n := range c.Nodes {
		state := "NotReady"
		if n.Ready {
			state = "Ready"
		}
		if n.Unschedulable {
			state += ",SchedulingDisabled"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s ago\n", n.Name, state, strings.Join(n.Roles, ","), n.Version, n.Address, now.Sub(n.Heartbeat).Truncate(time.Second))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := printGateways(w, c.Gateways); err != nil {
		return err
	}
	if len(c.Servers) > 0 {
		fmt.Fprintf(w, "servers: %s\n", strings.Join(c.Servers, ", "))
	}
	return nil
}

// printGateways prints a line for each Service by which clients reach Gateways or Ingresses.
func printGateways(w io.Writer, gateways []status.Gateway) error {
	if len(gateways) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "GATEWAY\tPORTS\tADDRESSES\tNODES\tFAULT")
	for _, g := range gateways {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", g.Name, strings.Join(g.Ports, ","), strings.Join(g.Addresses, ","), strings.Join(g.Nodes, ","), g.Fault)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return nil
}

// printVolumes prints a line for each volume.
func printVolumes(w io.Writer, volumes []status.Volume) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "VOLUME\tSIZE\tCLAIM")
	for _, v := range volumes {
		claim := v.Claim
		if v.Snapshot {
			claim = "(snapshot)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", v.Name, byteSize(v.Size), claim)
	}
	return table.Flush()
}

// printDatastore prints a line for each thing that is known.
func printDatastore(w io.Writer, d *status.Datastore, now time.Time) {
	fmt.Fprintf(w, "DATASTORE\t%s: %s\n", d.Kind, d.Place)
	if d.Fault != "" {
		fmt.Fprintf(w, "fault\t%s\n", d.Fault)
	}
	if d.Size > 0 {
		fmt.Fprintf(w, "size\t%s", byteSize(d.Size))
		if d.Used > 0 {
			fmt.Fprintf(w, ", %s of it in use", byteSize(d.Used))
		}
		fmt.Fprintln(w)
	}
	if d.Disk != nil {
		fmt.Fprintf(w, "disk\t%s of %s free\n", byteSize(d.Disk.Free), byteSize(d.Disk.Size))
	}
	if c := d.Recent; c != nil {
		fmt.Fprintf(w, "commits\t%d in the last minutes: p50 %s, p99 %s\n", c.Count, milliseconds(c.P50), milliseconds(c.P99))
	}
	if s := d.Slow; s != nil {
		fmt.Fprintf(w, "slow\t%d operations of more than %s", s.Count, s.Over)
		if s.Count > 0 {
			fmt.Fprintf(w, ", the last %s ago: %s took %s", now.Sub(s.At).Truncate(time.Second), s.Last, milliseconds(s.Took))
		}
		fmt.Fprintln(w)
	}
	if c := d.Connections; c != nil {
		fmt.Fprintf(w, "connections\t%d of at most %d, %d in use", c.Open, c.Max, c.InUse)
		if c.Answer > 0 {
			fmt.Fprintf(w, "; the database answers in %s", milliseconds(c.Answer))
		}
		fmt.Fprintln(w)
	}
	if d.Etcd != nil {
		printEtcd(w, d.Etcd)
	}
}

func printEtcd(w io.Writer, e *datastore.Etcd) {
	fmt.Fprintf(w, "raft\tterm %d, index %d, %d of it to be applied", e.Term, e.Committed, e.Committed-min(e.Applied, e.Committed))
	if e.Quorum > 0 {
		fmt.Fprintf(w, "; %d votes are needed", e.Quorum)
	}
	fmt.Fprintln(w)
	for _, m := range e.Members {
		role := "voter"
		switch {
		case m.Leader:
			role = "leader"
		case m.Learner:
			role = "learner"
		}
		if !m.Answers {
			role += ", does not answer"
		}
		fmt.Fprintf(w, "member\t%s: %s\n", m.Name, role)
	}
}

func byteSize(n int64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

func milliseconds(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
