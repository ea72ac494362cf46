package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/cluster/servers"
	"github.com/kedge-dev/kedge/internal/controlplane/election"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/release"
	"github.com/kedge-dev/kedge/internal/controlplane/upgradecontrol/store"
)

const (
	versionFlag     = "version"
	channelFlag     = "channel"
	fileFlag        = "file"
	sourceFlag      = "source"
	concurrencyFlag = "concurrency"
	drainFlag       = "drain"
	checkFlag       = "check"
)

func upgradeCommand() *cli.Command {
	return &cli.Command{
		Name:  "upgrade",
		Usage: "on a server: upgrade all nodes of the cluster, servers first. A node that does not get ready goes back, and no other node begins. The cluster continues if you interrupt this command",
		Flags: runningFlags([]cli.Flag{
			administrator(),
			&cli.StringFlag{Name: versionFlag, Usage: "`VERSION` to upgrade to, such as v1.37.2+kedge.2"},
			&cli.StringFlag{Name: channelFlag, Usage: "`URL` of a text with the version to upgrade to in its first line"},
			&cli.StringFlag{Name: fileFlag, Usage: "`PATH` of the new executable on this server"},
			&cli.StringFlag{Name: sourceFlag, Usage: "`URL` of a folder with a folder for each version", DefaultText: release.DefaultSource},
			&cli.StringFlag{Name: concurrencyFlag, Usage: "upgrade `NUMBER` agents at a time. Servers are upgraded one at a time", Value: "1"},
			&cli.BoolFlag{Name: drainFlag, Usage: "evict the pods of each node before its upgrade, as kubectl drain does"},
			&cli.BoolFlag{Name: checkFlag, Usage: "say what would happen, in which order, and what forbids it, and change nothing"},
		}),
		Before: noArguments,
		Action: upgradeCluster,
	}
}

func upgradeCluster(c *cli.Context) error {
	spec, err := planOf(c)
	if err != nil {
		return err
	}
	api, cfg, err := connect(c)
	if err != nil {
		return err
	}
	custom, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	plans := upgradecontrol.NewClient(custom)
	if c.Bool(checkFlag) {
		return checkUpgrade(c, api, cfg, plans, spec)
	}
	if err := plans.Begin(c.Context, spec); err != nil {
		return err
	}
	err = plans.Await(c.Context, func(line string) { fmt.Fprintln(c.App.Writer, line) })
	switch {
	case c.Context.Err() != nil:
		return errors.New("the cluster goes on with the upgrade. Run the same command again to follow it, or `kedge kubectl get plan`. To stop it before the next node: `kedge kubectl delete plan " + upgradecontrol.PlanName + "`")
	case errors.Is(err, upgradecontrol.ErrStopped):
		return fmt.Errorf("%w.\nNodes that are not upgraded run what they ran before: see `kedge kubectl get plan %s -o yaml`. When the fault is mended, run the same command again", err, upgradecontrol.PlanName)
	}
	return err
}

// planOf returns the Plan that the flags ask for.
func planOf(c *cli.Context) (upgrades.PlanSpec, error) {
	spec := upgrades.PlanSpec{Version: c.String(versionFlag), Channel: c.String(channelFlag), Source: c.String(sourceFlag)}
	given := 0
	for _, name := range []string{versionFlag, channelFlag, fileFlag} {
		if c.String(name) != "" {
			given++
		}
	}
	switch {
	case given != 1:
		return spec, fmt.Errorf("`kedge upgrade` needs one of --%s, --%s and --%s, got %d", versionFlag, channelFlag, fileFlag, given)
	case spec.Version != "" && !upgrades.IsVersion(spec.Version):
		return spec, fmt.Errorf("flag --%s takes a version such as v1.37.2+kedge.2, got %q", versionFlag, spec.Version)
	case spec.Source != "" && c.String(fileFlag) != "":
		return spec, fmt.Errorf("--%s is for --%s and --%s: leave it out with --%s", sourceFlag, versionFlag, channelFlag, fileFlag)
	}
	number, err := strconv.ParseInt(c.String(concurrencyFlag), 10, 32)
	if err != nil || number < 1 || number > 1000 {
		return spec, fmt.Errorf("flag --%s takes a whole number from 1 to 1000, got %q", concurrencyFlag, c.String(concurrencyFlag))
	}
	spec.Concurrency = int32(number)
	if c.Bool(drainFlag) {
		spec.Drain = &upgrades.Drain{TimeoutSeconds: 300}
	}
	if path := c.String(fileFlag); path != "" {
		if spec.File, err = filepath.Abs(path); err != nil {
			return spec, err
		}
		spec.SHA256, err = digestOf(spec.File)
	}
	return spec, err
}

// digestOf returns the SHA-256 digest of a file.
func digestOf(path string) (string, error) {
	file, err := datadir.OpenRegular(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// checkUpgrade prints what a Plan would do. It fails if something forbids the Plan.
func checkUpgrade(c *cli.Context, api kubernetes.Interface, cfg *rest.Config, plans upgradecontrol.Client, spec upgrades.PlanSpec) error {
	version, lacks, err := resolve(c.Context, spec)
	if err != nil {
		return err
	}
	cluster, err := lookAround(c.Context, api, cfg, plans)
	if err != nil {
		return err
	}
	plan := &upgrades.Plan{ObjectMeta: metav1.ObjectMeta{Name: upgradecontrol.PlanName, CreationTimestamp: metav1.Now()}, Spec: spec}
	forecast := upgradecontrol.Foresee(c.Context, plan, version, cluster)
	for _, architecture := range forecast.Architectures {
		if fault := lacks(architecture); fault != nil {
			forecast.Forbidden = append(forecast.Forbidden, fault.Error())
		}
	}
	return printForecast(c.App.Writer, version, forecast)
}

// resolve returns the version that a Plan means, and a function that tells what is wrong with an
// architecture, or nil.
func resolve(ctx context.Context, spec upgrades.PlanSpec) (version string, lacks func(architecture string) error, err error) {
	if spec.File != "" {
		return resolveFile(ctx, spec.File)
	}
	source, err := release.Open(spec.Source, release.KeyFile)
	if err != nil {
		return "", nil, err
	}
	if version = spec.Version; version == "" {
		if version, err = source.Channel(ctx, spec.Channel); err != nil {
			return "", nil, err
		}
	}
	found, err := source.Find(ctx, version)
	if err != nil {
		return "", nil, err
	}
	return version, func(architecture string) error { _, err := found.Digest(architecture); return err }, nil
}

func resolveFile(ctx context.Context, path string) (version string, lacks func(architecture string) error, err error) {
	file, err := datadir.OpenRegular(path)
	if err != nil {
		return "", nil, err
	}
	defer file.Close()
	is, err := store.ArchitectureOf(file)
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	if version, err = executables.Version(ctx, path); err != nil {
		return "", nil, fmt.Errorf("%s: %w", path, err)
	}
	return version, func(architecture string) error {
		if architecture == is {
			return nil
		}
		return fmt.Errorf("%s is for %s, and some nodes are %s: use --%s", path, is, architecture, versionFlag)
	}, nil
}

// lookAround returns the cluster as it is.
func lookAround(ctx context.Context, api kubernetes.Interface, cfg *rest.Config, plans upgradecontrol.Client) (upgradecontrol.Cluster, error) {
	var cluster upgradecontrol.Cluster
	nodes, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return cluster, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		cluster.Nodes = append(cluster.Nodes, &nodes.Items[i])
	}
	if cluster.Plans, err = plans.List(ctx); err != nil {
		return cluster, err
	}
	endpoints, err := api.DiscoveryV1().EndpointSlices(corev1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return cluster, fmt.Errorf("look for servers: %w", err)
	}
	cluster.Servers = servers.Addresses(endpoints, "")
	trusting := rest.CopyConfig(cfg)
	trusting.TLSClientConfig.ServerName = pki.APIName
	tls, err := rest.TLSConfigFor(trusting)
	if err != nil {
		return cluster, fmt.Errorf("read kubeconfig: %w", err)
	}
	cluster.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true}}
	cluster.Leader, err = election.Leader(ctx, api)
	if apierrors.IsNotFound(err) {
		err = nil // this is the only server
	}
	return cluster, err
}

// printForecast prints what a Plan would do. It returns an error if something forbids the Plan.
func printForecast(w io.Writer, version string, f upgradecontrol.Forecast) error {
	if len(f.Done) > 0 {
		fmt.Fprintf(w, "Already %s: %s\n", version, strings.Join(f.Done, ", "))
	}
	if len(f.Steps) > 0 {
		fmt.Fprintf(w, "To %s, in this order:\n\n", version)
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "STEP\tNODE\tROLE\tVERSION")
		for i, step := range f.Steps {
			for _, node := range step {
				fmt.Fprintf(table, "%d\t%s\t%s\t%s\n", i+1, node.Node, node.Role, node.Version)
			}
		}
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if len(f.Forbidden) > 0 {
		return fmt.Errorf("this forbids the upgrade:\n- %s", strings.Join(f.Forbidden, "\n- "))
	}
	if f.Waits != "" {
		fmt.Fprintf(w, "It would wait: %s.\n", f.Waits)
	}
	text := "Nothing forbids the upgrade. To begin, run this command without --" + checkFlag + "."
	if len(f.Steps) == 0 {
		text = "There is nothing to do."
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
