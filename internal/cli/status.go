package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/inspect/status"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show the components and the datastore of the kedge that runs on this host, on a server also the cluster's nodes, and what is wrong with them. The exit status is 1 if something is wrong",
		Flags: []cli.Flag{
			formatFlag(),
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
			err = printAs(c.App.Writer, c.String(outputFlag), report, func(w io.Writer) error { return printStatus(w, report, time.Now()) })
			if err != nil {
				return fmt.Errorf("print status: %w", err)
			}
			if !report.Well() {
				return cli.Exit("", 1)
			}
			return nil
		},
	}
}

func printStatus(w io.Writer, report *status.Report, now time.Time) error {
	fmt.Fprintf(w, "kedge %s on node %s, process %d\n\n", report.Version, report.Node, report.PID)
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
	if s := report.Storage; s != nil && len(s.Volumes)+len(s.Leftovers)+len(s.Fault) > 0 {
		fmt.Fprintln(w)
		if err := printStorage(w, s); err != nil {
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

// printCluster prints a line for each node, and two for each problem.
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
	if c.Fault != "" {
		fmt.Fprintf(w, "cluster: %s\n", c.Fault)
	}
	for _, p := range c.Problems {
		fmt.Fprintf(w, "\nwrong: %s\nto do: %s\n", p.What, p.Do)
	}
	for _, note := range c.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", note)
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

// printStorage prints a line for each volume, and for what is left of others.
func printStorage(w io.Writer, s *status.Storage) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if len(s.Volumes) > 0 {
		fmt.Fprintln(table, "VOLUME\tSIZE\tCLAIM")
	}
	for _, v := range s.Volumes {
		claim := v.Claim
		if v.Snapshot {
			claim = "(snapshot)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", v.Name, byteSize(v.Size), claim)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, l := range s.Leftovers {
		fmt.Fprintf(w, "left over: %s %s\n", l.Path, l.Reason)
	}
	if s.Fault != "" {
		fmt.Fprintf(w, "storage: %s\n", s.Fault)
	}
	return nil
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
