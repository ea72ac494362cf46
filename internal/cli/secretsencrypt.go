package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/controlplane/encryption"
)

func secretsEncryptCommand() *cli.Command {
	return &cli.Command{
		Name:  "secrets-encrypt",
		Usage: "on a server: show and replace the keys that encrypt Secrets in the datastore",
		Subcommands: []*cli.Command{{
			Name:   "status",
			Usage:  "show the keys, what they encrypt, and which change is in progress",
			Flags:  runningFlags([]cli.Flag{formatFlag()}),
			Before: noArguments,
			Action: byRunning(encryptionStatus),
		}, {
			Name:    "rotate",
			Aliases: []string{"rotate-keys"}, // k3s's name
			Usage:   "make a new key, encrypt all Secrets again with it, and drop the old key. The server continues if you interrupt this command",
			Flags:   runningFlags(nil),
			Before:  noArguments,
			Action:  byRunning(func(c *cli.Context) error { return rewriteSecrets(c, encryption.AskRotate) }),
		}, {
			Name:   "reencrypt",
			Usage:  "encrypt again all Secrets that are not stored as the configuration says. The server continues if you interrupt this command",
			Flags:  runningFlags([]cli.Flag{&cli.BoolFlag{Name: "force", Hidden: true}, &cli.BoolFlag{Name: "skip", Hidden: true}}), // k3s's
			Before: noArguments,
			Action: byRunning(func(c *cli.Context) error { return rewriteSecrets(c, encryption.AskReencrypt) }),
		},
			instead("prepare", "There is nothing to prepare: run `kedge secrets-encrypt rotate`, which makes a key, encrypts all Secrets again and drops the old key"),
			instead("enable", "Set secrets-encryption: true on all servers, restart them one at a time, and run `kedge secrets-encrypt reencrypt`"),
			instead("disable", "Set secrets-encryption: false on all servers, restart them one at a time, and run `kedge secrets-encrypt reencrypt`"),
		},
	}
}

// instead makes a command of k3s's that only says what to do with kedge.
func instead(name, says string) *cli.Command {
	return &cli.Command{
		Name:   name,
		Hidden: true,
		Flags:  runningFlags(nil),
		Action: func(*cli.Context) error { return errors.New(says) },
	}
}

// rewriteSecrets begins by ask, and waits until all is done.
func rewriteSecrets(c *cli.Context, ask func(context.Context, *localapi.Client) (encryption.Status, error)) error {
	if _, err := ask(c.Context, local()); err != nil {
		return err
	}
	status, err := encryption.Await(c.Context, local(), func(what string) {
		fmt.Fprintln(c.App.ErrWriter, "waiting:", what)
	})
	if err != nil {
		return fmt.Errorf("it has begun, and goes on where a server runs (`kedge secrets-encrypt status` tells how far it is); this command cannot wait for it: %w", err)
	}
	for _, key := range status.Keys {
		fmt.Fprintf(c.App.Writer, "%d Secrets are encrypted with the key %s\n", key.Secrets, key.Name)
	}
	return nil
}

func encryptionStatus(c *cli.Context) error {
	status, err := encryption.AskStatus(c.Context, local())
	if err != nil {
		return err
	}
	return printAs(c.App.Writer, c.String(outputFlag), status, func(w io.Writer) error { return printEncryption(w, status) })
}

func printEncryption(w io.Writer, s encryption.Status) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	switch {
	case s.Theirs != "":
		fmt.Fprintf(table, "Encryption:\tnot by kedge: %s\n", s.Theirs)
		return table.Flush()
	case s.Encrypted:
		fmt.Fprintln(table, "Encryption:\ton")
	default:
		fmt.Fprintln(table, "Encryption:\toff")
	}
	stage := "at rest"
	if s.Pending {
		stage = "rewriting all Secrets"
	}
	if s.Waiting != "" {
		stage += "; waiting: " + s.Waiting
	}
	fmt.Fprintf(table, "Stage:\t%s\n", stage)
	if s.Plain > 0 {
		fmt.Fprintf(table, "Not encrypted:\t%d Secrets\n", s.Plain)
	}
	if s.Lost > 0 {
		fmt.Fprintf(table, "Not readable:\t%d Secrets, whose key is gone\n", s.Lost)
	}
	fmt.Fprintln(table, "\nKEY\tSECRETS\tUSE")
	for _, key := range s.Keys {
		use := "reading"
		if key.Writes {
			use = "reading, writing"
		}
		fmt.Fprintf(table, "%s\t%d\t%s\n", key.Name, key.Secrets, use)
	}
	fmt.Fprintln(table, "\nSERVER\tSECRETS-ENCRYPTION")
	for _, server := range s.Servers {
		setting := fmt.Sprint(server.Enabled)
		if !server.Knows {
			setting = "unknown: it runs an older kedge"
		}
		fmt.Fprintf(table, "%s\t%s\n", server.Address, setting)
	}
	return table.Flush()
}
