package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/inspect/why"
)

// target is the value of a flag that takes a host and a port.
type target struct {
	why.Target
	text string
}

// Set implements cli.Generic.
func (t *target) Set(text string) error {
	parsed, ok := why.ParseTarget(text)
	if !ok {
		return errors.New("a host and a port such as db:5432, db.shop:5432 or 10.0.0.7:443")
	}
	t.Target, t.text = parsed, text
	return nil
}

// String implements cli.Generic.
func (t *target) String() string { return t.text }

func whyCommand() *cli.Command {
	var to target
	return &cli.Command{
		Name:      "why",
		Usage:     "say why an object does not work, and what to do. Without an object, say what is not well in the namespace. The exit status is 1 if something is wrong",
		ArgsUsage: "[KIND/NAME]",
		Description: "kedge follows the object along the way that it takes through Kubernetes, up to the first step that fails.\n" +
			"It asks the API with the rights of the kubeconfig, like kubectl, and needs no kedge on this machine.",
		Flags: []cli.Flag{
			administrator(),
			&cli.StringFlag{Name: namespaceFlag, Aliases: []string{"n"}, Usage: "`NAMESPACE` of the object", DefaultText: "that of the kubeconfig"},
			&cli.BoolFlag{Name: everywhereFlag, Aliases: []string{"A"}, Usage: "without an object: look at the whole cluster"},
			&cli.BoolFlag{Name: tryFlag, Usage: "also connect to the Service from a node, or send a request to the Ingress from here"},
			&cli.GenericFlag{Name: toFlag, Usage: "with a pod: also ask for the name as the pod does, and connect from the pod to `HOST:PORT`. Without a port it only asks", Value: &to},
			&cli.StringFlag{Name: "node", Usage: "with --try: the `NODE` from which the Service is tried", DefaultText: "one that is ready"},
			formatFlag(),
		},
		Before: atMostOneObject,
		Action: func(c *cli.Context) error { return explainObject(c, to.Target) },
	}
}

// atMostOneObject refuses arguments that are not the name of one object.
func atMostOneObject(c *cli.Context) error {
	if c.IsSet("node") && !c.Bool(tryFlag) {
		return fmt.Errorf("--node is for --%[1]s: add --%[1]s, or leave --node out", tryFlag)
	}
	if c.NArg() == 0 && c.Bool(tryFlag) {
		return fmt.Errorf("--%s needs an object: name a Service or an Ingress, such as service/web", tryFlag)
	}
	if c.NArg() == 0 && c.IsSet(toFlag) {
		return fmt.Errorf("--%s needs a pod: name the one that connects, such as pod/web", toFlag)
	}
	if c.NArg() == 0 {
		return nil
	}
	if c.Bool(everywhereFlag) {
		return fmt.Errorf("--%s is for `kedge why` without an object: leave it out, or leave %s out", everywhereFlag, c.Args().First())
	}
	object, err := why.Parse("", c.Args().Slice()...)
	if err == nil && c.IsSet(toFlag) && object.Kind != "Pod" {
		return fmt.Errorf("--%s is for a pod: name one of the pods of %s. `kubectl get pods` lists them", toFlag, object)
	}
	return err
}

// tryFlag asks for a real connection. toFlag asks for one from a pod.
const (
	tryFlag = "try"
	toFlag  = "to"
)

// everywhereFlag is kubectl's flag for all namespaces.
const everywhereFlag = "all-namespaces"

// explainObject answers `kedge why`.
func explainObject(c *cli.Context, to why.Target) error {
	clients, namespace, err := asUser(c)
	if err != nil {
		return err
	}
	if c.NArg() == 0 {
		return explainNamespace(c, clients, namespace)
	}
	object, err := why.Parse(namespace, c.Args().Slice()...)
	if err != nil {
		return err
	}
	report, err := why.Explain(c.Context, clients, object)
	if err != nil {
		return err
	}
	if c.Bool(tryFlag) || c.IsSet(toFlag) {
		trial := why.Trial{Node: c.String("node"), To: to, Ask: why.AskNode(clients), Dial: new(net.Dialer).DialContext}
		if err := why.Try(c.Context, clients, report, trial); err != nil {
			return err
		}
	}
	if err := printAs(c.App.Writer, c.String(outputFlag), report, func(w io.Writer) error { return printWay(w, report) }); err != nil {
		return err
	}
	if !report.Well() {
		return cli.Exit("", 1)
	}
	return nil
}

// unwell is what `kedge why` prints without an object.
type unwell struct {
	Looked  int           `json:"looked"`
	Reports []*why.Report `json:"reports"`
	Unread  []string      `json:"unread,omitempty"`
}

func explainNamespace(c *cli.Context, clients why.Clients, namespace string) error {
	where := "namespace " + namespace
	if c.Bool(everywhereFlag) {
		namespace, where = "", "the cluster"
	}
	var found unwell
	var err error
	if found.Reports, found.Looked, found.Unread, err = why.Unwell(c.Context, clients, namespace); err != nil {
		return err
	}
	err = printAs(c.App.Writer, c.String(outputFlag), found, func(w io.Writer) error { return printUnwell(w, found, where) })
	if err == nil && len(found.Reports) > 0 {
		return cli.Exit("", 1)
	}
	return err
}

// asUser returns how to call the API with the kubeconfig that kubectl would use, and its namespace.
func asUser(c *cli.Context) (clients why.Clients, namespace string, err error) {
	cfg, namespace, err := userConfig(c)
	if err != nil {
		return clients, "", err
	}
	clients, err = clientsOf(cfg)
	return clients, namespace, err
}

// userConfig returns how to reach the API with the kubeconfig of the command, and the user's namespace.
func userConfig(c *cli.Context) (cfg *rest.Config, namespace string, err error) {
	path := c.String(kubeconfigFlag)
	if path == "" && !ownKubeconfig() {
		path = serverKubeconfig()
	}
	cfg, namespace, err = readKubeconfig(path)
	if given := c.String(namespaceFlag); given != "" {
		namespace = given
	}
	return cfg, namespace, err
}

// readKubeconfig returns how to reach the API with a kubeconfig, and its namespace. Without a file it is the one that kubectl finds.
func readKubeconfig(path string) (cfg *rest.Config, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if !strings.Contains(path, string(filepath.ListSeparator)) { // a list in the variable KUBECONFIG
		rules.ExplicitPath = path
	}
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	cfg, err = loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", fmt.Errorf("no kubeconfig was found: run this command on a server, or give --%s=FILE", kubeconfigFlag)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	if namespace, _, err = loaded.Namespace(); err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	cfg.QPS = -1 // a report is a few dozen requests at once
	return cfg, namespace, nil
}

// clientsOf returns how to call the API.
func clientsOf(cfg *rest.Config) (clients why.Clients, err error) {
	objects, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return clients, fmt.Errorf("make client: %w", err)
	}
	all, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return clients, fmt.Errorf("make client: %w", err)
	}
	return why.Clients{Kubernetes: objects, Dynamic: all, Summary: why.AskSummary(objects.CoreV1().RESTClient()), Now: time.Now}, nil
}

// marks are the signs of steps.
var marks = map[why.State]string{why.Passed: "ok", why.Failed: "FAILED", why.Waiting: "waiting", why.Warning: "note"}

// printWay prints the steps of an object, and the cause last, where eyes are.
func printWay(w io.Writer, r *why.Report) error {
	where := ""
	if r.Object.Namespace != "" {
		where = " in namespace " + r.Object.Namespace
	}
	fmt.Fprintf(w, "%s%s\n", r.Object, where)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, step := range r.Steps {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", marks[step.State], step.Name, step.Says)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, sentence := range r.Unread {
		fmt.Fprintln(w, sentence)
	}
	for _, step := range r.Steps {
		if step.Do != "" {
			fmt.Fprintf(w, "\nWhat to do: %s\n", step.Do)
		}
	}
	return nil
}

// objectName names an object among those of several namespaces.
func objectName(r *why.Report) string {
	if r.Object.Namespace == "" {
		return r.Object.String()
	}
	return r.Object.Namespace + " " + r.Object.String()
}

func printUnwell(w io.Writer, found unwell, where string) error {
	for _, r := range found.Reports {
		fmt.Fprintf(w, "%s: %s\n  What to do: %s\n", objectName(r), r.Cause().Says, r.Cause().Do)
	}
	for _, sentence := range found.Unread {
		fmt.Fprintln(w, sentence)
	}
	if len(found.Reports) > 0 {
		return nil
	}
	if found.Looked == 0 {
		return errors.New("there is nothing to look at in " + where)
	}
	_, err := fmt.Fprintf(w, "All is well with %d objects of %s.\n", found.Looked, where)
	return err
}
