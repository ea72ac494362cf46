package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/controlplane/policycontrol"
)

func netpolCommand() *cli.Command {
	return &cli.Command{
		Name:  "netpol",
		Usage: "on a server: explain what NetworkPolicies mean for a pod",
		Subcommands: []*cli.Command{{
			Name:      "explain",
			Usage:     "show who may talk to a pod and to whom the pod may talk, and which rule of which NetworkPolicy says so. With --from or --to, say whether that connection is allowed, and why",
			ArgsUsage: "POD",
			Flags: runningFlags([]cli.Flag{
				&cli.StringFlag{Name: "namespace", Aliases: []string{"n"}, Usage: "`NAMESPACE` of the pod, and of pods that --from and --to name without one", Value: "default"},
				&cli.StringFlag{Name: "from", Usage: "`PEER` that connects to the pod: POD, NAMESPACE/POD or an address"},
				&cli.StringFlag{Name: "to", Usage: "`PEER` that the pod connects to: POD, NAMESPACE/POD or an address"},
				&cli.StringFlag{Name: "port", Usage: "`PORT` that is connected to, such as 80, 53/UDP or 9999/SCTP (default: all ports)"},
				formatFlag(),
			}),
			Before: onePod,
			Action: byRunning(explainPolicies),
		}},
	}
}

// onePod refuses another number of arguments than one.
func onePod(c *cli.Context) error {
	if c.NArg() == 1 {
		return nil
	}
	return fmt.Errorf("`%s` needs the name of one pod, got %d. Run `kedge kubectl get pods --all-namespaces` for the list", commandName(c), c.NArg())
}

func explainPolicies(c *cli.Context) error {
	question := policycontrol.Question{Namespace: c.String("namespace"), Pod: c.Args().First(), From: c.String("from"), To: c.String("to")}
	if namespace, name, both := strings.Cut(question.Pod, "/"); both {
		question.Namespace, question.Pod = namespace, name
	}
	if text := c.String("port"); text != "" {
		var err error
		if question.Port, question.Protocol, err = parsePort(text); err != nil {
			return err
		}
		if question.From == "" && question.To == "" {
			return fmt.Errorf("--port=%s needs a peer: give --from PEER or --to PEER", text)
		}
	}
	answer, err := policycontrol.AskExplain(c.Context, local(), question)
	if err != nil {
		return err
	}
	return printAs(c.App.Writer, c.String(outputFlag), answer, func(w io.Writer) error { return printExplanation(w, answer) })
}

// parsePort reads NUMBER or NUMBER/PROTOCOL.
func parsePort(text string) (port uint16, protocol uint8, err error) {
	number, name, _ := strings.Cut(text, "/")
	protocols := map[string]uint8{"": 6, "TCP": 6, "UDP": 17, "SCTP": 132}
	parsed, err := strconv.ParseUint(number, 10, 16)
	protocol, known := protocols[strings.ToUpper(name)]
	if err != nil || parsed == 0 || !known {
		return 0, 0, fmt.Errorf("flag --port takes a number from 1 to 65535, also with /TCP, /UDP or /SCTP, got %q", text)
	}
	return uint16(parsed), protocol, nil
}

func printExplanation(w io.Writer, e policycontrol.Explanation) error {
	var where []string
	if e.Node != "" {
		where = append(where, "on node "+e.Node)
	}
	for _, address := range e.Addresses {
		where = append(where, address.String())
	}
	if len(e.Addresses) == 0 && e.Note == "" {
		where = append(where, "no address yet")
	}
	fmt.Fprintf(w, "pod %s: %s\n", e.Pod, strings.Join(where, ", "))
	if e.Note != "" {
		_, err := fmt.Fprintln(w, e.Note)
		return err
	}
	if e.Ingress != nil && e.Egress != nil {
		fmt.Fprintln(w, "\nWHO MAY TALK TO IT")
		if err := printSide(w, e.Ingress, "its own node"); err != nil {
			return err
		}
		fmt.Fprintln(w, "\nTO WHOM IT MAY TALK")
		if err := printSide(w, e.Egress, ""); err != nil {
			return err
		}
	}
	for _, v := range e.Verdicts {
		if err := printVerdict(w, v); err != nil {
			return err
		}
	}
	return nil
}

// printSide prints a line for each rule. always is a peer that needs no rule.
func printSide(w io.Writer, s *policycontrol.Side, always string) error {
	if len(s.Policies) == 0 {
		_, err := fmt.Fprintln(w, "everybody: no policy isolates the pod in this direction")
		return err
	}
	fmt.Fprintf(w, "only what is listed: the pod is isolated by %s\n", strings.Join(s.Policies, ", "))
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "POLICY\tRULE\tPEERS\tPORTS")
	for _, r := range s.Rules {
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", r.Policy, r.Number, listed(r.Peers), listed(r.Ports))
	}
	if always != "" {
		fmt.Fprintf(table, "(every pod)\t\t%s\tall\n", always)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, words := range s.TooLarge {
		fmt.Fprintf(w, "Too large: %s\n", words)
	}
	return nil
}

// listed joins words. A rule whose peers or ports are all invalid has none.
func listed(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, "; ")
}

func printVerdict(w io.Writer, v policycontrol.Verdict) error {
	verdict := "FORBIDDEN"
	switch {
	case v.Allowed && len(v.Ports) > 0:
		verdict = "ALLOWED on " + strings.Join(v.Ports, ", ") + " only"
	case v.Allowed:
		verdict = "ALLOWED"
	}
	fmt.Fprintf(w, "\n%s: from %s to %s\n", verdict, v.From, v.To)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "POD\tDIRECTION\tALLOWED\tWHY")
	refused := false
	for _, s := range v.Steps {
		refused = refused || !s.Allowed
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Pod, s.Direction, map[bool]string{true: "yes", false: "no"}[s.Allowed], s.Why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if !v.Allowed && !refused {
		_, err := fmt.Fprintln(w, "no port is allowed on both sides")
		return err
	}
	return nil
}
