package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/removal/install"
)

// errServiceFlags says that a command does not take the flags of the service.
var errServiceFlags = errors.New("the flags of the service that install.sh made are wrong")

// asInstalled makes a command one about the kedge that install.sh made a service of,
// if there is one: it gives it the service's environment and, if the user gave none
// of the configuration, its flags.
// own are flags of the configuration that the command takes for itself.
func asInstalled(c *cli.Context, own ...string) error {
	host, err := install.Look("/")
	if err != nil {
		return err
	}
	return asService(host, c, own...)
}

// installedConfig is loadConfig of a command that is asInstalled.
func installedConfig(c *cli.Context) (*config.Config, error) {
	if err := asInstalled(c); err != nil {
		return nil, err
	}
	return loadConfig(c)
}

func asService(host *install.Host, c *cli.Context, taken ...string) error {
	for _, variable := range host.Environment {
		name, value, _ := strings.Cut(variable, "=")
		setDefaultEnv(name, value)
	}
	given, own := c.LocalFlagNames(), flag.NewFlagSet("", flag.ContinueOnError)
	given = slices.DeleteFunc(given, func(name string) bool { return slices.Contains(taken, name) })
	own.SetOutput(io.Discard)
	configured := false
	for _, f := range configFlags(config.ServerRole) {
		configured = configured || slices.Contains(given, f.Names()[0])
		set := func(value string) error { return c.Set(f.Names()[0], value) }
		for _, name := range f.Names() {
			if _, isBool := f.(*cli.BoolFlag); isBool {
				own.BoolFunc(name, "", set)
			} else {
				own.Func(name, "", set)
			}
		}
	}
	// The variable was looked at before it was known.
	for _, variable := range config.FileVariables {
		if file := os.Getenv(variable); file != "" && !c.IsSet(configFlag) {
			if err := c.Set(configFlag, file); err != nil {
				return fmt.Errorf("take the service's %s: %w", variable, err)
			}
		}
	}
	if configured {
		return nil
	}
	if err := own.Parse(host.Flags); err != nil {
		return fmt.Errorf("%w: %w. Correct /etc/kedge/command, or give this command the flags that it needs, such as --data-dir", errServiceFlags, err)
	}
	return nil
}
