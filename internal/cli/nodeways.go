package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/node/mesh"
)

// waysPatience is how long a node may take to tell its ways.
const waysPatience = 20 * time.Second

func nodeWays() *cli.Command {
	return &cli.Command{
		Name:      "ways",
		Usage:     "show how nodes reach each other with flannel-backend mesh: directly or through a server, with round trip and loss",
		ArgsUsage: "[NODE...]",
		Description: "Without names, all nodes are asked. This command asks by way of the API: the user needs the right to get nodes/proxy.\n" +
			"A way is idle if no packets go to the node.",
		Flags:  runningFlags([]cli.Flag{administrator(), formatFlag()}),
		Action: listWays,
	}
}

// nodesWays are the ways of a node, or why they are not known.
type nodesWays struct {
	Node  string     `json:"node"`
	Ways  []mesh.Way `json:"ways,omitempty"`
	Fault string     `json:"fault,omitempty"`
}

func listWays(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	names := c.Args().Slice()
	if len(names) == 0 {
		nodes, err := client.CoreV1().Nodes().List(c.Context, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		for _, node := range nodes.Items {
			names = append(names, node.Name)
		}
		slices.Sort(names)
	}
	all := []nodesWays{}
	var faults []error
	for _, name := range names {
		told := nodesWays{Node: name}
		if told.Ways, err = askWays(c.Context, client, name); err != nil {
			told.Fault = err.Error()
			faults = append(faults, err)
		}
		all = append(all, told)
	}
	return errors.Join(append(faults, printAs(c.App.Writer, c.String(outputFlag), all, func(w io.Writer) error { return printWays(w, all) }))...)
}

// askWays asks a node how it reaches the others.
func askWays(ctx context.Context, client kubernetes.Interface, node string) (ways []mesh.Way, err error) {
	ctx, cancel := context.WithTimeout(ctx, waysPatience)
	defer cancel()
	text, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix(mesh.Path).DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the cluster has no node %s, or its flannel-backend is not mesh: `kedge node list` shows the names", node)
	case err != nil:
		return nil, fmt.Errorf("ask node %s for its ways: %w", node, err)
	}
	if err := json.Unmarshal(text, &ways); err != nil {
		return nil, fmt.Errorf("decode the ways of node %s: %w", node, err)
	}
	return ways, nil
}

func printWays(w io.Writer, all []nodesWays) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FROM\tTO\tWAY\tBY\tROUND TRIP\tLOSS\tMTU\tWHY")
	for _, from := range all {
		for _, way := range from.Ways {
			trip, loss, mtu := "", "", ""
			if way.MTU > 0 {
				trip, loss, mtu = fmt.Sprintf("%.1f ms", way.RoundTrip), fmt.Sprintf("%.0f %%", 100*way.Loss), fmt.Sprint(way.MTU)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", from.Node, way.Node, way.Way, way.By, trip, loss, mtu, way.Why)
		}
	}
	return table.Flush()
}
