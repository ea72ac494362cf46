package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/inspect/settings"
)

const configFlag = "config"

// configFlags makes a flag of each setting of the role, and --config. Some have a letter,
// as in k3s.
func configFlags(role config.Role) []cli.Flag {
	flags := settingFlags(role, "", nil)
	for _, f := range flags {
		switch f := f.(type) {
		case *cli.StringFlag:
			f.Aliases = append(f.Aliases, config.Letters(f.Name)...)
		case *cli.StringSliceFlag:
			f.Aliases = append(f.Aliases, config.Letters(f.Name)...)
		}
	}
	return flags
}

// serverFlags are the flags of a command that reads the server's configuration: its own
// ones, and below them those of the server.
func serverFlags(own ...cli.Flag) []cli.Flag {
	return append(own, settingFlags(config.ServerRole, "SETTINGS, AS OF kedge server", nil)...)
}

// runningFlags are the flags of a command that the kedge that runs performs, or that
// calls the API: its own ones, and those of the server, so that all commands of a family
// take the same. Its help shows only those that say which kedge is meant, and shown.
func runningFlags(own []cli.Flag, shown ...string) []cli.Flag {
	shown = append(shown, "data-dir")
	return append(own, settingFlags(config.ServerRole, "", func(key string) bool { return !slices.Contains(shown, key) })...)
}

func settingFlags(role config.Role, category string, hidden func(key string) bool) []cli.Flag {
	flags := []cli.Flag{&cli.StringFlag{
		Name:     configFlag,
		Aliases:  []string{"c"},
		Usage:    "configuration file. Its keys are the names of the flags",
		Value:    config.DefaultPath,
		EnvVars:  config.FileVariables,
		Category: category,
	}}
	for _, f := range config.Default().Fields() {
		if f.Role != config.AnyRole && f.Role != role {
			continue
		}
		// The environment is read by config.Load, and only mentioned here.
		usage, hide := f.Usage+" [$"+f.Env()+"]", hidden != nil && hidden(f.Key)
		switch {
		case f.IsBool():
			flags = append(flags, &cli.BoolFlag{Name: f.Key, Usage: usage, DefaultText: f.String(), Category: category, Hidden: hide})
		case f.IsList():
			flags = append(flags, &cli.StringSliceFlag{Name: f.Key, Usage: usage, DefaultText: f.String(), Category: category, Hidden: hide})
		default:
			flags = append(flags, &cli.StringFlag{Name: f.Key, Usage: usage, DefaultText: f.String(), Category: category, Hidden: hide})
		}
	}
	// k3s's names are for users who come from there. The help does not show them.
	for _, row := range config.K3sOnly() {
		if row.IsSwitch() {
			flags = append(flags, &cli.BoolFlag{Name: row.Key, Hidden: true})
		} else {
			flags = append(flags, &cli.StringSliceFlag{Name: row.Key, Hidden: true})
		}
	}
	return flags
}

// loadConfig reads the configuration with the flags of c over it.
func loadConfig(c *cli.Context) (*config.Config, error) {
	cfg, _, err := loadSources(c)
	return cfg, err
}

// loadSources is loadConfig, and tells where values came from too. With an error come
// the values that could be read.
func loadSources(c *cli.Context) (*config.Config, config.Sources, error) {
	return flagsOf(c).load()
}

// givenFlags are the flags with which a command was called. They hold nothing of
// urfave/cli, whose flags of all commands are a MiB.
type givenFlags struct {
	configFile string
	values     []config.Flag
}

func flagsOf(c *cli.Context) givenFlags {
	given := givenFlags{configFile: c.String(configFlag)}
	add := func(name string, values ...string) {
		given.values = append(given.values, config.Flag{Name: name, Values: values})
	}
	// Of two names of a setting, kedge's wins.
	for _, row := range config.K3sOnly() {
		switch {
		case !c.IsSet(row.Key):
		case row.IsSwitch():
			add(row.Key, strconv.FormatBool(c.Bool(row.Key)))
		default:
			add(row.Key, c.StringSlice(row.Key)...)
		}
	}
	for _, f := range config.Default().Fields() {
		switch {
		case !c.IsSet(f.Key):
		case f.IsBool():
			add(f.Key, strconv.FormatBool(c.Bool(f.Key)))
		case f.IsList():
			add(f.Key, c.StringSlice(f.Key)...)
		default:
			add(f.Key, c.String(f.Key))
		}
	}
	return given
}

// load reads the configuration with the flags over it. adapt changes what was given
// before it is checked.
func (g givenFlags) load(adapt ...func(*config.Config) error) (*config.Config, config.Sources, error) {
	flags := func(cfg *config.Config) error { return cfg.SetFlags(g.values) }
	return config.LoadSources(g.configFile, append([]func(*config.Config) error{flags}, adapt...)...)
}

// withConfig is the action of a command that takes the server's configuration, which
// is that of the installed kedge unless the user says otherwise, and no arguments.
func withConfig(do func(*cli.Context, *config.Config) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := noArguments(c); err != nil {
			return err
		}
		cfg, err := installedConfig(c)
		if err != nil {
			return err
		}
		return do(c, cfg)
	}
}

// byRunning is the action of a command that the kedge that runs performs with its own
// settings. It refuses flags that say otherwise, except those of own, which the command
// reads itself.
func byRunning(do cli.ActionFunc, own ...string) cli.ActionFunc {
	return func(c *cli.Context) error {
		if err := agree(c, own, func() (settings.Printed, error) { return settings.AskPrint(c.Context, local()) }); err != nil {
			return err
		}
		return do(c)
	}
}

// agree compares the flags that the user gave with the settings of the kedge that runs.
// If none runs, the command itself says so.
func agree(c *cli.Context, own []string, ask func() (settings.Printed, error)) error {
	given := flagsOf(c)
	if !c.IsSet(configFlag) && len(given.values) == 0 {
		return nil
	}
	cfg, sources, err := given.load()
	if err != nil {
		return err
	}
	running, err := ask()
	if errors.Is(err, localapi.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	var faults []error
	for _, f := range cfg.Fields() {
		compared := strings.HasPrefix(sources[f.Key], "--") || f.Key == "data-dir" && c.IsSet(configFlag)
		if !compared || slices.Contains(own, f.Key) {
			continue
		}
		i := slices.IndexFunc(running.Settings, func(s config.Setting) bool { return s.Key == f.Key })
		switch {
		case f.Secret:
			faults = append(faults, fmt.Errorf("leave --%s out: the kedge that runs uses its own", f.Key))
		case i < 0 || fmt.Sprint(running.Settings[i].Value) != fmt.Sprint(f.Shown()):
			has := "no such setting"
			if i >= 0 {
				has = fmt.Sprintf("%s=%v", f.Key, running.Settings[i].Value)
			}
			faults = append(faults, fmt.Errorf("--%s=%v would have no effect: the kedge that runs on this host performs this command, and has %s. "+
				"Leave the flag out, or restart kedge with it", f.Key, f.Shown(), has))
		}
	}
	return errors.Join(faults...)
}
