package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/install"
)

// TestAsService gives a command the flags and the environment of a service.
func TestAsService(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("debug: true"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--data-dir=/srv", "-c", file, "--node-label=a=b"}
	for name, test := range map[string]struct {
		service []string
		args    []string
		dir     string
		fault   bool
	}{
		"no service":            {nil, []string{"-o", "x"}, "/var/lib/kedge", false},
		"service":               {flags, []string{"-o", "x"}, "/srv", false},
		"flags of the user's":   {flags, []string{"-o", "x", "--node-label=c=d"}, "/var/lib/kedge", false},
		"a flag there is none":  {append(flags, "--data-dri=/x"), []string{"-o", "x"}, "", true},
		"no flag of its own":    {flags, nil, "/srv", false},
		"its own, the long way": {flags, []string{"--output=x"}, "/srv", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KEDGE_TOKEN", "")
			var got *config.Config
			app := newApp()
			app.Commands = []*cli.Command{{
				Name:  "command",
				Flags: append(configFlags(config.ServerRole), &cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}}),
				Action: func(c *cli.Context) error {
					host := &install.Host{Flags: test.service, Environment: []string{"KEDGE_TOKEN=hush"}}
					return asService(host, c, func(c *cli.Context) (err error) {
						if got, err = loadConfig(c); err == nil && c.String(outputFlag) != "x" && test.args != nil {
							t.Errorf("the output is %q", c.String(outputFlag))
						}
						return err
					}, []string{outputFlag})
				},
			}}
			err := app.RunContext(t.Context(), append([]string{"kedge", "command"}, test.args...))
			if test.fault {
				if !errors.Is(err, errServiceFlags) || !strings.Contains(err.Error(), "--data-dir") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || got.DataDir != test.dir || got.Log.Debug != (test.dir == "/srv") || got.Token != "hush" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
