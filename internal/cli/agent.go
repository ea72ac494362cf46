package cli

import (
	"context"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/version"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:   "agent",
		Usage:  "run an agent: a node that joins a server, until SIGTERM",
		Flags:  configFlags(config.AgentRole),
		Action: running("an agent", config.AgentRole, runAgent),
	}
}

func runAgent(c *cli.Context, cfg *config.Config) error {
	environment := os.Environ()
	notify := newNotifier()
	context.AfterFunc(c.Context, func() { notify("STOPPING=1") })
	began := time.Now()
	logrus.Infof("kedge %s starts as an agent of %s, data in %s", version.Version, cfg.Agent.Server, cfg.DataDir)
	err := agent.Run(c.Context, cfg, agent.Observer{
		OnChange:   logChange,
		OnSlowStop: logSlowStop,
		OnReady: func(node string) {
			logrus.Infof("node %s is ready in %s", node, seconds(time.Since(began)))
			notify("READY=1\nSTATUS=ready")
		},
	})
	return startAnew(err, environment)
}
