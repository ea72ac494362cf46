package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/rotation"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
)

const (
	ttlFlag         = "ttl"
	descriptionFlag = "description"
	newTokenFlag    = "new-token"
	tokenFlag       = "token"
	kubeconfigFlag  = "kubeconfig"
)

// administrator is the flag that connect reads.
func administrator() cli.Flag {
	return &cli.StringFlag{
		Name:        kubeconfigFlag,
		Usage:       "administrator's kubeconfig",
		DefaultText: "the file that the server of this host writes",
		EnvVars:     []string{"KUBECONFIG"},
	}
}

func tokenCommand() *cli.Command {
	kubeconfig := administrator()
	day := lifetime(24 * time.Hour)
	return &cli.Command{
		Name:  "token",
		Usage: "on a server: make, list, delete and replace tokens with which nodes join",
		Subcommands: []*cli.Command{{
			Name:      "create",
			Usage:     "make a join token that expires, and print it",
			ArgsUsage: "[TOKEN OF kedge token generate]",
			Flags: runningFlags([]cli.Flag{
				kubeconfig,
				&cli.GenericFlag{Name: ttlFlag, Usage: "how `LONG` the token is valid, such as 30m, 24h or 720h; 0 for no end", Value: &day, DefaultText: "24h"},
				&cli.StringFlag{Name: descriptionFlag, Usage: "purpose of the token, which `kedge token list` shows"},
			}),
			Action: createToken,
		}, {
			Name:   "generate",
			Usage:  "print a new secret for `kedge token create`, and do nothing else",
			Flags:  runningFlags([]cli.Flag{kubeconfig}),
			Before: noArguments,
			Action: func(c *cli.Context) error {
				fmt.Fprintln(c.App.Writer, join.GenerateToken())
				return nil
			},
		}, {
			Name:   "list",
			Usage:  "list the tokens that `kedge token create` made",
			Flags:  runningFlags([]cli.Flag{kubeconfig}),
			Before: noArguments,
			Action: listTokens,
		}, {
			Name:      "delete",
			Usage:     "delete tokens by their IDs. Nodes that have joined stay",
			ArgsUsage: "ID...",
			Flags:     runningFlags([]cli.Flag{kubeconfig}),
			Before:    someArguments("the IDs of tokens", "kedge token list"),
			Action:    deleteTokens,
		}, {
			Name: "rotate",
			Usage: "replace the servers' own token on all servers, and print the new one. Nodes that have joined stay. " +
				"With --token, which is the token until now, kedge checks that it is that of this cluster",
			Flags:  serverFlags(&cli.StringFlag{Name: newTokenFlag, Usage: "the new `TOKEN`, or its secret alone", DefaultText: "a random one"}),
			Before: noArguments,
			Action: rotateToken,
		}},
	}
}

// connect returns how to call the API as the administrator.
func connect(c *cli.Context) (kubernetes.Interface, *rest.Config, error) {
	path := c.String(kubeconfigFlag)
	if path == "" {
		own, err := installedConfig(c)
		if err != nil {
			return nil, nil, err
		}
		path = own.Server.WriteKubeconfig
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: run this command on a server, or give --%s=FILE", err, kubeconfigFlag)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	return client, cfg, nil
}

func createToken(c *cli.Context) error {
	if c.NArg() > 1 {
		return fmt.Errorf("`kedge token create` takes at most one token, got %d", c.NArg())
	}
	client, cfg, err := connect(c)
	if err != nil {
		return err
	}
	// The authority may be in the kubeconfig itself, or in a file it names.
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	token, err := join.CreateToken(c.Context, client, cfg.CAData, c.Args().First(), time.Duration(*c.Generic(ttlFlag).(*lifetime)), c.String(descriptionFlag))
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, token)
	return nil
}

func listTokens(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	tokens, err := join.ListTokens(c.Context, client)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tENDS\tJOINS NODES\tDESCRIPTION")
	for _, token := range tokens {
		ends := "never"
		if !token.Expires.IsZero() {
			ends = token.Expires.Local().Format(time.DateTime)
		}
		fmt.Fprintf(table, "%s\t%s\t%t\t%s\n", token.ID, ends, token.Joins, token.Description)
	}
	return table.Flush()
}

func deleteTokens(c *cli.Context) error {
	client, _, err := connect(c)
	if err != nil {
		return err
	}
	var faults []error
	for _, id := range c.Args().Slice() {
		faults = append(faults, join.DeleteToken(c.Context, client, id))
	}
	return errors.Join(faults...)
}

func rotateToken(c *cli.Context) error {
	cfg, old, err := withoutToken(c)
	if err != nil {
		return err
	}
	if c.IsSet(newTokenFlag) && c.String(newTokenFlag) == "" {
		return fmt.Errorf("--%s is empty: give the new token, or leave the flag out for a random one", newTokenFlag)
	}
	dir := datadir.Dir(cfg.DataDir)
	if old != "" {
		if err := join.CheckToken(dir, old); err != nil {
			return fmt.Errorf("--%s: %w", tokenFlag, err)
		}
	}
	token, err := rotation.Token(c.Context, dir, choice.KeepsSQLite(dir), cfg.Token, cfg.Server.LocalAddress(), c.String(newTokenFlag))
	if err != nil {
		return err
	}
	fmt.Fprintln(c.App.Writer, token)
	return nil
}

// withoutToken returns the installed configuration without the flag of the token, and the
// token in that flag. The flag is not a setting here: as with k3s, it has the token that is
// to be replaced.
func withoutToken(c *cli.Context) (*config.Config, string, error) {
	old := c.String(tokenFlag)
	if c.IsSet(tokenFlag) {
		// The service may have the flag too.
		if err := c.Set(tokenFlag, ""); err != nil {
			return nil, "", err
		}
	}
	if err := asInstalled(c, tokenFlag); err != nil {
		return nil, "", err
	}
	given := flagsOf(c)
	given.values = slices.DeleteFunc(given.values, func(flag config.Flag) bool {
		return flag.Name == tokenFlag && slices.Equal(flag.Values, []string{""})
	})
	cfg, _, err := given.load()
	if err != nil {
		return nil, "", err
	}
	return cfg, old, nil
}
