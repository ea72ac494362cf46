// Package cli is kedge's command line: one file per command, which turns flags
// into a Config or a call, and nothing else. Only main calls it, and only it
// knows urfave/cli.
package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/base/version"
)

// tools are the programs that kedge is when called by their name.
var tools = []string{"kubectl", "crictl", "ctr"}

// Run does what the command line args asks for, args[0] being the name kedge
// was called by: as kubectl, crictl or ctr it is that program.
func Run(ctx context.Context, args []string) error {
	if name := filepath.Base(args[0]); slices.Contains(tools, name) {
		args = slices.Concat([]string{"kedge", name}, args[1:])
	}
	if record := trial.ToGuard(); record != "" {
		return guard(ctx, record)
	}
	work := &workload{trial: trial.FromEnvironment()}
	err := runApp(ctx, newApp(work), args)
	if err == nil && work.run != nil {
		err = work.run(ctx)
	}
	work.trial.Explain(err)
	return err
}

// workload is what a command that runs until SIGTERM does. The command's action only
// prepares it: Run does it when the flags of all commands, a MiB, are garbage.
type workload struct {
	run func(context.Context) error
	// trial is set if this is a new executable that has to prove itself.
	trial *trial.Child
}

// ExitStatus returns the exit status for an error of Run.
func ExitStatus(err error) int {
	var coder cli.ExitCoder
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return 1
}

func newApp(work *workload) *cli.App {
	cli.VersionPrinter = func(c *cli.Context) { fmt.Fprintf(c.App.Writer, "kedge %s\n", version.Version) }
	app := &cli.App{
		Name:    "kedge",
		Usage:   "Kubernetes in one executable",
		Version: version.Version,
		Description: "kedge server runs a whole Kubernetes node: control plane, container runtime and network in one\n" +
			"process. See `kedge COMMAND --help` for what a command takes.",
		Commands: []*cli.Command{
			serverCommand(work),
			agentCommand(work),
			runCommand(),
			clusterCommand(),
			tokenCommand(),
			nodeCommand(),
			snapshotCommand(),
			backupCommand(),
			restoreCommand(),
			adoptCommand(),
			secretsEncryptCommand(),
			certificateCommand(),
			imageCommand(),
			netpolCommand(),
			upgradeCommand(),
			kubectlCommand(),
			crictlCommand(),
			ctrCommand(),
			whyCommand(),
			recorderCommand(),
			consoleCommand(),
			statusCommand(),
			configCommand(),
			logLevelCommand(),
			checkConfigCommand(),
			supportBundleCommand(),
			killallCommand(),
			uninstallCommand(),
			completionCommand(),
			versionCommand(),
			keeperCommand(),
			compareBackupCommand(),
		},
		EnableBashCompletion: true,
		// Values of upstream's arguments have commas of their own; config
		// splits where they separate.
		DisableSliceFlagSeparator: true,
		HideHelpCommand:           true,
		// Errors are printed by main, once.
		ExitErrHandler: func(*cli.Context, error) {},
		Action:         func(c *cli.Context) error { return needsCommand(c, cli.ShowAppHelp) },
		OnUsageError:   usageError,
	}
	complete(app.Commands)
	return app
}
