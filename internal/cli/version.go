package cli

import (
	"fmt"
	"runtime"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/version"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:   "version",
		Usage:  "print the version of this kedge",
		Before: noArguments,
		Action: func(c *cli.Context) error {
			_, err := fmt.Fprint(c.App.Writer, versionText())
			return err
		},
	}
}

func versionText() string {
	return fmt.Sprintf("kedge %s (commit %s, %s %s/%s)\n", version.Version, version.Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
