package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/removal/install"
)

// TestAsService gives a command the flags and the environment of a service.
func TestAsService(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("debug: true"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--data-dir=/srv", "-c", file, "--node-label=a=b", "--node-label", "c=d", "--disable-agent"}
	for name, test := range map[string]struct {
		service []string
		env     string
		args    []string
		dir     string
		debug   bool
		labels  string
		fault   string
	}{
		"no service":            {nil, "", []string{"-o", "x"}, "/var/lib/kedge", false, "", ""},
		"service":               {flags, "", []string{"-o", "x"}, "/srv", true, "a=b c=d", ""},
		"service, an argument":  {flags, "", []string{"-o", "x", "NAME"}, "/srv", true, "a=b c=d", ""},
		"flags of the user's":   {flags, "", []string{"-o", "x", "--node-label=e=f"}, "/var/lib/kedge", false, "e=f", ""},
		"a flag there is none":  {append(flags, "--data-dri=/x"), "", []string{"-o", "x"}, "", false, "", "--data-dir"},
		"a value that is none":  {append(flags, "--debug=maybe"), "", []string{"-o", "x"}, "", false, "", "maybe"},
		"its own, the long way": {flags, "", []string{"--output=x"}, "/srv", true, "a=b c=d", ""},
		"file by a variable":    {[]string{"--data-dir=/srv"}, file, []string{"-o", "x"}, "/srv", true, "", ""},
		"file by both":          {[]string{"--config=/dev/null"}, file, []string{"-o", "x"}, "/var/lib/kedge", false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KEDGE_TOKEN", "")
			t.Setenv("KEDGE_CONFIG_FILE", "") // back as it was at the end
			os.Unsetenv("KEDGE_CONFIG_FILE")
			host := &install.Host{Flags: test.service, Environment: []string{"KEDGE_TOKEN=hush", "KEDGE_CONFIG_FILE" + "=" + test.env}}
			var got *config.Config
			command := &cli.Command{
				Name:  "command",
				Flags: append(serverFlags(), &cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}}),
				Action: func(c *cli.Context) error {
					err := asService(host, c)
					if err != nil {
						return err
					}
					if c.String(outputFlag) != "x" {
						t.Errorf("the output is %q", c.String(outputFlag))
					}
					got, err = loadConfig(c)
					return err
				},
			}
			app := newApp(&workload{})
			app.Commands = []*cli.Command{{Name: "commands", Subcommands: []*cli.Command{command}}}
			err := app.RunContext(t.Context(), append([]string{"kedge", "commands", "command"}, test.args...))
			if test.fault != "" {
				if !errors.Is(err, errServiceFlags) || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.DataDir != test.dir || got.Log.Debug != test.debug || got.Token != "hush" || strings.Join(got.Node.NodeLabels, " ") != test.labels {
				t.Errorf("got %+v", got)
			}
		})
	}
}
