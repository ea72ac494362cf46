package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/removal/install"
)

func agentCommand(work *workload) *cli.Command {
	return &cli.Command{
		Name:   "agent",
		Usage:  "run an agent, which is a node that joins a server. It stops at SIGTERM",
		Flags:  configFlags(config.AgentRole),
		Action: preparing(work, "an agent", config.AgentRole, runAgent),
	}
}

func runAgent(ctx context.Context, cfg *config.Config, process *agent.Process, local *localapi.Server) error {
	environment := os.Environ()
	notify := newNotifier()
	unit := newUnitStatus(notify)
	context.AfterFunc(ctx, func() { notify("STOPPING=1") })
	began := time.Now()
	logrus.Infof("kedge %s starts as an agent of %s, data in %s", version.Version, cfg.Agent.Server, cfg.DataDir)
	err := agent.Run(ctx, cfg, process, local, agent.Observer{
		OnJoined:   func() { forgetToken(cfg.Token) },
		OnChange:   telling(process.Trial),
		OnFault:    unit.onFault,
		OnSlowStop: logSlowStop,
		OnReady: func(node string) {
			logrus.Infof("node %s is ready in %s", node, seconds(time.Since(began)))
			unit.onReady()
			process.Trial.Components()
		},
	})
	return startAnew(ctx, err, environment, cfg, process.Trial)
}

// forgetToken takes the token of a node that has joined out of the environment of the
// processes that it starts, which may run for months. With the server's token, anybody
// who becomes root on the node would get the whole cluster: forgetToken also removes
// that from the file that install.sh wrote, and warns.
func forgetToken(text string) {
	variables := config.Variables("token")
	for _, variable := range variables {
		if err := os.Unsetenv(variable); err != nil {
			logrus.Warnf("Processes of this node inherit %s: %v", variable, err)
		}
	}
	admitsServers, short := join.AdmitsServers(text)
	if !admitsServers {
		return
	}
	given := "This node was given the server's token, and anybody who reads that controls the whole cluster."
	if short {
		given = "This node was given a short token. If it is the server's, anybody who reads it controls the whole cluster."
	}
	var err error
	removed := false
	for _, variable := range variables {
		gone, fault := install.Forget("/", variable, text)
		removed, err = removed || gone, errors.Join(err, fault)
	}
	switch {
	case err != nil:
		logrus.Warnf("%s kedge could not remove it from %s: remove it yourself: %v", given, install.EnvironmentFile, err)
	case removed:
		logrus.Warnf("%s kedge has removed it from %s: "+
			"a node that has joined needs no token. If this node must join again, run `kedge token create` on a server, and write %s='TOKEN' there", given, install.EnvironmentFile, variables[0])
	default:
		logrus.Warnf("%s Remove it from this host: `kedge config print` shows where it is set. "+
			"A node that has joined needs no token. Other nodes join with a token of `kedge token create`", given)
	}
}

// withoutLostTokenFile has an agent start whose token's file was taken away, as it
// should be after the join: a node that has joined needs none. One that does need a
// token says so itself.
func withoutLostTokenFile(cfg *config.Config) error {
	if _, err := os.Stat(cfg.TokenFile); cfg.TokenFile != "" && errors.Is(err, fs.ErrNotExist) {
		logrus.Warnf("The file %s of token-file does not exist. An agent that has joined starts without it; one that has not joined needs it", cfg.TokenFile)
		cfg.TokenFile = ""
	}
	return nil
}
