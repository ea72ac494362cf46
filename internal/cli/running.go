package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/logging"
	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/inspect/settings"
)

// local asks the kedge that runs on this host.
func local() *localapi.Client { return localapi.NewClient(datadir.LocalSocket) }

// preparing is the action of a command that runs until SIGTERM, as root: it prepares
// work. what is how a user calls that.
func preparing(work *workload, what string, role config.Role, run runFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		given := flagsOf(c)
		load := func() (*config.Config, config.Sources, error) { return given.load() }
		if role == config.AgentRole {
			load = func() (*config.Config, config.Sources, error) { return given.load(withoutLostTokenFile) }
		}
		cfg, sources, err := load()
		if err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return fmt.Errorf("only root may run %s, which makes containers and networks: run this command with sudo", what)
		}
		work.run = func(ctx context.Context) error { return runLogged(ctx, role, load, cfg, sources, work.trial, run) }
		return nil
	}
}

// runFunc runs a server or an agent until ctx ends.
type runFunc func(ctx context.Context, cfg *config.Config, process *agent.Process, local *localapi.Server) error

// runLogged calls run with a log, and with settings that SIGHUP and commands on its host
// can look at and change.
func runLogged(ctx context.Context, role config.Role, load settings.Load, cfg *config.Config, sources config.Sources, onTrial *trial.Child, run runFunc) error {
	log, err := logging.Open(cfg.Log)
	if err != nil {
		return err
	}
	process, err := agent.SetUp(cfg.Log)
	if err != nil {
		return err
	}
	process.Trial = onTrial
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, notice := range cfg.Notices {
		logrus.WithField("component", "config").Info(notice)
	}
	own := settings.New(role, load, cfg, sources, log, process.Verbosity.Set)
	local := localapi.New(datadir.LocalSocket, own.Routes()...)
	// Commands get answers until run has ended.
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	defer serving.Wait()
	defer stop()
	serving.Go(func() { own.Run(answering, hangups) })
	serving.Go(func() {
		// Such as by another kedge on this host: run says more of that.
		if err := local.Run(answering); err != nil {
			logrus.WithError(err).Warn("Commands on this host get no answers from this kedge")
		}
	})
	err = run(ctx, cfg, process, local)
	if err != nil && cfg.Log.File != "" {
		// main prints it to stderr only.
		logrus.Error(err)
	}
	return err
}
