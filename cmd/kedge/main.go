// Command kedge is Kubernetes in one executable: see internal/README.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kedge-dev/kedge/internal/cli"
)

func main() {
	cli.HideSecrets()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second signal ends the process at once, as without a handler.
	context.AfterFunc(ctx, stop)
	if err := cli.Run(ctx, os.Args); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "kedge:", text)
		}
		os.Exit(cli.ExitStatus(err))
	}
}
