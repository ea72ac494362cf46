package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/base/version"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/server"
)

func serverCommand(work *workload) *cli.Command {
	return &cli.Command{
		Name:   "server",
		Usage:  "run a server: the control plane and a node. It stops at SIGTERM",
		Flags:  configFlags(config.ServerRole),
		Action: preparing(work, "a server", config.ServerRole, runServer),
	}
}

func runServer(ctx context.Context, cfg *config.Config, process *agent.Process, local *localapi.Server) error {
	environment := os.Environ()
	notify := newNotifier()
	unit := newUnitStatus(notify)
	context.AfterFunc(ctx, func() { notify("STOPPING=1") })
	began := time.Now()
	logrus.Infof("kedge %s starts, data in %s", version.Version, cfg.DataDir)
	err := server.Run(ctx, cfg, process, local, server.Observer{
		OnChange:   telling(process.Trial),
		OnFault:    unit.onFault,
		OnSlowStop: logSlowStop,
		OnReady: func(s server.Summary) {
			kubeconfig := ""
			if s.Kubeconfig != "" {
				kubeconfig = "kubeconfig: " + s.Kubeconfig + "; "
			}
			logrus.Infof("ready in %s; %sto join a node, there: kedge agent --server %s --token-file FILE, with a token of `kedge token create` here",
				seconds(time.Since(began)), kubeconfig, s.URL)
			unit.onReady()
			process.Trial.Components()
		},
	})
	return startAnew(ctx, err, environment, cfg, process.Trial)
}

// startAnew replaces this process by a new one with the same id, arguments and
// environment if the node has moved, the authorities were replaced, or a new executable
// is to be tried, so that it needs no service manager to come back. Any other end of a
// run it returns as it is.
func startAnew(ctx context.Context, err error, environment []string, cfg *config.Config, onTrial *trial.Child) error {
	switch {
	case errors.Is(err, trial.ErrBegin):
		environment = append(environment, trial.Guarding(datadir.Dir(cfg.DataDir).Trial()))
	case errors.Is(err, host.ErrMoved), errors.Is(err, join.ErrAuthorities):
		logrus.Warnf("%v: starting anew", err)
		environment = append(environment, onTrial.Inherit()...)
	default:
		return err
	}
	if ctx.Err() != nil {
		return nil // it was told to stop meanwhile
	}
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, environment)
	}
	return fmt.Errorf("start anew: %w", err)
}

// telling returns what logs a change of a component, and tells the guard of a trial of it.
func telling(onTrial *trial.Child) func(component.Status) {
	return func(s component.Status) {
		logChange(s)
		onTrial.Component(s)
	}
}

// logChange shows one component's way to Ready, and its end.
func logChange(s component.Status) {
	log := logrus.WithField("component", s.Name)
	switch s.State {
	case component.Ready:
		log.Infof("ready in %s", seconds(s.Took))
	case component.Stopped:
		log.Info("stopped")
	case component.Failed:
		if strings.Contains(s.Error, trial.ErrBegin.Error()) {
			log.Info("stopped")
			return
		}
		// The error itself is printed by main, once.
		log.Error("failed")
	default:
		log.Debug(s.State)
	}
}

// logSlowStop says what holds up a stop.
func logSlowStop(names []string) {
	logrus.Warnf("Still stopping: waiting for %s", strings.Join(names, ", "))
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
