package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/kedge-dev/kedge/internal/base/trial"
)

// guard runs a new executable on trial, and then executes what is installed: the new one if it
// has proven itself. It returns if ctx ends before that.
func guard(ctx context.Context, record string) error {
	environment := os.Environ()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find executable: %w", err)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	// What the packages of a whole kedge have left at the start, on a host that now runs two.
	debug.FreeOSMemory()
	say := func(message string) { fmt.Fprintln(os.Stderr, "kedge:", message) }
	g := trial.Guard{
		Record: record, Installed: program, Own: "/proc/self/exe", Args: os.Args, Environment: environment,
		Patience: trial.Patience, Steady: trial.Steady, StopPatience: trial.StopPatience,
		Hangups: hangups, Say: say,
	}
	if err := g.Run(ctx); err != nil {
		say(err.Error())
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("start anew: %w", syscall.Exec(program, os.Args, environment))
}
