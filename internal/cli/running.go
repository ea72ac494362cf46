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
	"github.com/kedge-dev/kedge/internal/inspect/settings"
)

// local asks the kedge that runs on this host.
func local() *localapi.Client { return localapi.NewClient(datadir.LocalSocket) }

// running is the action of a command that runs until SIGTERM, as root: it has a log,
// and settings that SIGHUP and commands on its host can look at and change. what is how
// a user calls it.
func running(what string, role config.Role, run func(*cli.Context, *config.Config, *agent.Process, *localapi.Server) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		var adapt []func(*config.Config) error
		if role == config.AgentRole {
			adapt = append(adapt, withoutLostTokenFile)
		}
		load := func() (*config.Config, config.Sources, error) { return loadSources(c, adapt...) }
		cfg, sources, err := load()
		if err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return fmt.Errorf("only root may run %s, which makes containers and networks: run this command with sudo", what)
		}
		log, err := logging.Open(cfg.Log)
		if err != nil {
			return err
		}
		process, err := agent.SetUp(cfg.Log)
		if err != nil {
			return err
		}
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		own := settings.New(role, load, cfg, sources, log, process.Verbosity.Set)
		local := localapi.New(datadir.LocalSocket, own.Routes()...)
		// Commands get answers until run has ended.
		ctx, stop := context.WithCancel(context.WithoutCancel(c.Context))
		var serving sync.WaitGroup
		defer serving.Wait()
		defer stop()
		serving.Go(func() { own.Run(ctx, hangups) })
		serving.Go(func() {
			// Such as by another kedge on this host: run says more of that.
			if err := local.Run(ctx); err != nil {
				logrus.WithError(err).Warn("Commands on this host get no answers from this kedge")
			}
		})
		err = run(c, cfg, process, local)
		if err != nil && cfg.Log.File != "" {
			// main prints it to stderr only.
			logrus.Error(err)
		}
		return err
	}
}
