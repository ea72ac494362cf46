// Package session gives a throw-away cluster to one command, and removes the cluster when the command ends.
// `kedge run` is this package; `kedge cluster` uses its parts for images.
package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
)

// Options say what a command gets.
type Options struct {
	Store   clusters.Store
	Cluster clusters.Cluster
	// Images are archives for all nodes, and Manifests are files or folders with objects.
	Images, Manifests []string
	// Wait waits until the objects of Manifests are ready.
	Wait bool
	// Timeout limits the time until the command starts. 0 is no limit.
	Timeout time.Duration
	// KeepOnFailure leaves the cluster running if the command fails.
	KeepOnFailure bool
	// Logs is a folder for logs, events and objects if something fails, or empty. New files there belong to
	// Owner.
	Logs  string
	Owner User
	// Command is a program and its arguments.
	Command []string
	// Executable is the path of kedge, for `kedge kubectl`.
	Executable string
	// Progress is called with each step that has ended.
	Progress func(step string, took time.Duration)
	// Note is called with what the user should know.
	Note func(text string)
}

// Run makes a cluster, runs the command, and removes the cluster. It returns the command's exit status, which
// is 128 and the number of the signal if a signal has ended the command. An error says why the command was
// not started, or what was not removed.
func Run(ctx context.Context, o Options) (status int, err error) {
	signals := catchSignals()
	defer signals.stop()
	process, err := keeper.Launch(keeper.Job{Store: o.Store, Cluster: o.Cluster, Images: o.Images})
	if err != nil {
		return 0, err
	}
	keep := false
	defer func() {
		if keep {
			err = errors.Join(err, process.Detach())
			return
		}
		began := time.Now()
		if fault := process.Stop(); err == nil {
			err = fault
		}
		o.Progress("removed", time.Since(began))
	}()

	starting := signals.context(ctx)
	ready, err := o.prepare(starting, process)
	if ready.Name != "" && err != nil {
		o.gather(ctx, ready)
	}
	if err != nil {
		return 0, err
	}
	if o.Cluster.Data != "" {
		if err := forbidWrites(starting, ready.Kubeconfig); err != nil {
			return 0, err
		}
	}
	status, err = o.command(signals, process, ready)
	if status != 0 || err != nil {
		o.gather(ctx, ready)
		keep = o.KeepOnFailure
	}
	if keep {
		o.Note(fmt.Sprintf("the cluster stays, because of --keep-on-failure. To use it: export KUBECONFIG=%s. To remove it: %skedge cluster delete %s", ready.Kubeconfig, sudo(), ready.Name))
	}
	return status, err
}

// sudo returns what stands before a command on the clusters of this user.
func sudo() string {
	if os.Geteuid() == 0 {
		return "sudo "
	}
	return ""
}

// prepare waits for the cluster, and gives it images and objects.
func (o *Options) prepare(ctx context.Context, process *keeper.Process) (ready keeper.Report, err error) {
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("the cluster was not ready within %s: give a longer --timeout, or look at its logs with --logs FOLDER", o.Timeout))
		defer cancel()
	}
	ready, err = process.WaitReady(ctx, func(r keeper.Report) {
		o.Progress(r.Step, time.Duration(r.Seconds*float64(time.Second)))
	})
	if err != nil {
		return ready, err
	}
	if len(o.Manifests) > 0 {
		began := time.Now()
		objects, err := o.apply(ctx, ready)
		if err != nil {
			return ready, becauseOf(ctx, err)
		}
		o.Progress("manifests", time.Since(began))
		if o.Wait {
			began := time.Now()
			if err := o.waitReady(ctx, ready.Kubeconfig, objects); err != nil {
				return ready, err
			}
			o.Progress("objects ready", time.Since(began))
		}
	}
	return ready, nil
}

// becauseOf returns why ctx ended, if it has, or else err.
func becauseOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// gather writes what helps to find out what failed. started need not have a kubeconfig.
func (o *Options) gather(ctx context.Context, started keeper.Report) {
	if o.Logs == "" {
		return
	}
	began := time.Now()
	known, err := o.Store.Find(started.Name)
	if err == nil {
		err = o.gatherIn(context.WithoutCancel(ctx), known, started)
	}
	if err != nil {
		o.Note(fmt.Sprintf("not everything is in %s: %v", o.Logs, err))
	}
	o.Progress("logs", time.Since(began))
}

func (o *Options) gatherIn(ctx context.Context, known clusters.Known, started keeper.Report) error {
	to, err := openEvidence(o.Logs, o.Owner)
	if err != nil {
		return err
	}
	defer to.root.Close()
	return gather(ctx, known, started, to)
}

// environment returns the variables of the command.
func environment(kubeconfig string) []string {
	var variables []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "KUBECONFIG=") {
			variables = append(variables, variable)
		}
	}
	return append(variables, "KUBECONFIG="+kubeconfig)
}
