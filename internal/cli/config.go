package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/inspect/settings"
	"github.com/kedge-dev/kedge/internal/removal/install"
)

const agentFlag = "agent"

func configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "show the configuration, or make the running kedge read it again",
		Subcommands: []*cli.Command{{
			Name: "print",
			Usage: "print the configuration of the kedge that runs on this host, and where each value came from. If none runs, print what the installed " +
				"service would use, with the given flags of `kedge server`. Secrets are hidden",
			Flags: serverFlags(
				&cli.BoolFlag{Name: agentFlag, Usage: "show the configuration of kedge agent, not of kedge server"},
				&cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FORMAT` of the output: yaml, as in a configuration file, or json", Value: "yaml"}),
			Before: noArguments,
			Action: printConfig,
		}, {
			Name:   "reload",
			Usage:  "make the kedge that runs on this host read its configuration again, as SIGHUP does, and print what has changed and what needs a restart",
			Flags:  runningFlags(nil),
			Before: noArguments,
			Action: byRunning(func(c *cli.Context) error {
				changes, err := settings.AskReload(c.Context, local())
				if err == nil && len(changes) == 0 {
					changes = []string{"nothing in the configuration changed"}
				}
				for _, change := range changes {
					fmt.Fprintln(c.App.Writer, change)
				}
				return err
			}),
		}},
	}
}

func printConfig(c *cli.Context) error {
	asked := slices.DeleteFunc(c.LocalFlagNames(), func(name string) bool { return name == outputFlag || name == "o" })
	printed, err := settings.AskPrint(c.Context, local())
	if len(asked) == 0 && !errors.Is(err, localapi.ErrNotRunning) {
		if err != nil {
			return err
		}
		return printSettings(c.App.Writer, c.String(outputFlag), fmt.Sprintf("Of the kedge %s that runs on this host.", printed.Role), printed.Settings)
	}
	role := config.ServerRole
	if c.Bool(agentFlag) {
		role = config.AgentRole
	}
	if len(asked) == 0 {
		service, err := install.Look("/")
		if err != nil {
			return err
		}
		if service.Command != "" {
			role = config.Role(service.Command)
		}
		if err := asService(service, c); err != nil {
			return err
		}
	}
	cfg, sources, err := loadSources(c)
	if err != nil {
		return err
	}
	return printSettings(c.App.Writer, c.String(outputFlag), fmt.Sprintf("What a start of kedge %s would use.", role), cfg.Settings(sources, role))
}

func printSettings(w io.Writer, format, whose string, settings []config.Setting) error {
	if format == "json" {
		return printAs(w, format, settings, nil)
	}
	if format != "yaml" {
		return fmt.Errorf("unknown output format %q: use yaml or json", format)
	}
	text, err := settingsYAML(whose, settings)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// settingsYAML writes a configuration file in which comments say where values come
// from, and the first one whose they are.
func settingsYAML(whose string, settings []config.Setting) ([]byte, error) {
	mapping := &yaml.Node{Kind: yaml.MappingNode, HeadComment: whose}
	for _, s := range settings {
		var value yaml.Node
		if err := value.Encode(s.Value); err != nil {
			return nil, fmt.Errorf("print %s: %w", s.Key, err)
		}
		if value.Kind == yaml.SequenceNode {
			value.Style = yaml.FlowStyle
		}
		value.LineComment = s.Source
		mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: s.Key}, &value)
	}
	return yaml.Marshal(mapping)
}
