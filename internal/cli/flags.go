package cli

import (
	"errors"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
)

const (
	configFlag    = "config"
	configFileEnv = "KEDGE_CONFIG_FILE"
)

// configFlags makes a flag of each setting of the roles, and --config.
func configFlags(roles ...config.Role) []cli.Flag {
	flags := []cli.Flag{&cli.StringFlag{
		Name:    configFlag,
		Aliases: []string{"c"},
		Usage:   "configuration file; the flags' names are its keys",
		Value:   config.DefaultPath,
		EnvVars: []string{configFileEnv},
	}}
	for _, f := range config.Default().Fields() {
		if f.Role != config.AnyRole && !slices.Contains(roles, f.Role) {
			continue
		}
		// The environment is read by config.Load, and only mentioned here.
		usage := f.Usage + " [$" + f.Env() + "]"
		switch {
		case f.IsBool():
			flags = append(flags, &cli.BoolFlag{Name: f.Key, Usage: usage, DefaultText: f.String()})
		case f.IsList():
			flags = append(flags, &cli.StringSliceFlag{Name: f.Key, Usage: usage, DefaultText: f.String()})
		default:
			flags = append(flags, &cli.StringFlag{Name: f.Key, Usage: usage, DefaultText: f.String()})
		}
	}
	return flags
}

// loadConfig reads the configuration with the flags of c over it.
func loadConfig(c *cli.Context) (*config.Config, error) {
	cfg, _, err := loadSources(c)
	if err != nil {
		return nil, err
	}
	return cfg, nil
}

// loadSources is loadConfig, and tells where values came from too. With an error come
// the values that could be read. adapt changes what was given before it is checked.
func loadSources(c *cli.Context, adapt ...func(*config.Config) error) (*config.Config, config.Sources, error) {
	var given []string
	flags := func(cfg *config.Config) error {
		var faults []error
		for _, f := range cfg.Fields() {
			if !c.IsSet(f.Key) {
				continue
			}
			given = append(given, f.Key)
			switch {
			case f.IsBool():
				faults = append(faults, f.Set(strconv.FormatBool(c.Bool(f.Key))))
			case f.IsList():
				faults = append(faults, f.Set(c.StringSlice(f.Key)...))
			default:
				faults = append(faults, f.Set(c.String(f.Key)))
			}
		}
		return errors.Join(faults...)
	}
	cfg, sources, err := config.LoadSources(c.String(configFlag), append([]func(*config.Config) error{flags}, adapt...)...)
	for _, key := range given {
		sources[key] = "--" + key
	}
	return cfg, sources, err
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
