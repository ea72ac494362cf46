package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kedge-dev/kedge/internal/base/jsonsyntax"
)

// DefaultPath is where the configuration file is looked for if nothing else is
// said. There it may be missing.
const DefaultPath = "/etc/kedge/config.yaml"

// Load reads the configuration: the defaults, over them the file at path and
// the drop-ins in the folder path.d in the order of their names, over them
// KEDGE_* variables of the environment, over them the overrides (the flags).
// A drop-in's key ending in + adds to a list instead of replacing it. It
// returns every fault it finds, not only the first.
func Load(path string, overrides ...func(*Config) error) (*Config, error) {
	c, _, err := LoadSources(path, overrides...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// LoadSources is Load, and tells where values came from too, but those of the
// overrides. With an error come the values that could be read.
func LoadSources(path string, overrides ...func(*Config) error) (*Config, Sources, error) {
	c, sources := Default(), Sources{}
	var faults []error
	files, err := configFiles(path)
	if err != nil {
		return c, sources, err
	}
	for _, file := range files {
		faults = append(faults, c.loadFile(file, sources))
	}
	faults = append(faults, c.loadEnv(sources))
	for _, override := range overrides {
		faults = append(faults, override(c))
	}
	if c.TokenFile != "" && c.Token == "" {
		token, err := os.ReadFile(c.TokenFile)
		if c.Token = strings.TrimSpace(string(token)); err == nil && c.Token == "" {
			err = fmt.Errorf("%s is empty: write the token into it", c.TokenFile)
		}
		if err != nil {
			faults = append(faults, &FieldError{"token-file", err.Error()})
		}
		sources["token"] = c.TokenFile
	} else if c.TokenFile != "" {
		faults = append(faults, &FieldError{"token-file", "cannot be set with token. Remove one of them"})
	}
	faults = append(faults, c.Validate())
	c.applyProfile(sources)
	return c, sources, errors.Join(faults...)
}

func configFiles(path string) ([]string, error) {
	var files []string
	switch _, err := os.Stat(path); {
	case err == nil:
		files = append(files, path)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read configuration: %w", err)
	case path != DefaultPath:
		return nil, fmt.Errorf("read configuration: %s does not exist; give another path with --config", path)
	}
	dropIns, err := filepath.Glob(filepath.Join(path+".d", "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	slices.Sort(dropIns)
	return append(files, dropIns...), nil
}

func (c *Config) loadFile(path string, sources Sources) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var settings map[string]yaml.Node
	if err := yaml.Unmarshal(text, &settings); err != nil {
		if fault := jsonsyntax.Fault(text); filepath.Ext(path) == jsonsyntax.Extension && fault != nil {
			return fmt.Errorf("read configuration %s: %w", path, fault)
		}
		return fmt.Errorf("read configuration %s: it is not a YAML mapping of keys to values: %w", path, err)
	}
	// A map has no order of its own; a user reads faults from the top.
	names := slices.SortedFunc(maps.Keys(settings), func(a, b string) int { return settings[a].Line - settings[b].Line })
	var faults []error
	for _, name := range names {
		node := settings[name]
		key, add := strings.CutSuffix(name, "+")
		fault := func(err error) error { return fmt.Errorf("%s:%d: %w", path, node.Line, err) }
		field, err := c.field(key)
		if err != nil {
			faults = append(faults, fault(err))
			continue
		}
		texts, err := scalars(field, node)
		source := fmt.Sprintf("%s:%d", path, node.Line)
		if err == nil {
			if add && field.IsList() && field.String() != "" {
				texts = append(slices.Clone(field.value.Interface().([]string)), texts...)
				source = sources.of(key) + ", " + source
			}
			err = field.Set(texts...)
			sources[key] = source
		}
		if err != nil {
			faults = append(faults, fault(err))
		}
	}
	return errors.Join(faults...)
}

// scalars returns the text of a YAML scalar, or those of a sequence of them.
func scalars(f Field, node yaml.Node) ([]string, error) {
	nodes := []*yaml.Node{&node}
	if node.Kind == yaml.SequenceNode {
		if !f.IsList() {
			return nil, &FieldError{f.Key, "takes one value, got a list"}
		}
		nodes = node.Content
	}
	texts := make([]string, len(nodes))
	for i, n := range nodes {
		if n.Kind != yaml.ScalarNode {
			return nil, &FieldError{f.Key, "takes plain values, got a mapping or a nested list"}
		}
		texts[i] = n.Value
	}
	return texts, nil
}

func (c *Config) loadEnv(sources Sources) error {
	var faults []error
	for _, f := range c.Fields() {
		if text, ok := os.LookupEnv(f.Env()); ok && text != "" {
			if err := f.Set(text); err != nil {
				faults = append(faults, fmt.Errorf("environment variable %s: %w", f.Env(), err))
			}
			sources[f.Key] = "$" + f.Env()
		}
	}
	return errors.Join(faults...)
}

// field finds a setting by its key. If there is none, the error names a similar key.
func (c *Config) field(key string) (Field, error) {
	fields := c.Fields()
	var keys []string
	for _, f := range fields {
		if f.Key == key {
			return f, nil
		}
		keys = append(keys, f.Key)
	}
	hint := "run `kedge server --help` for the list"
	if similar := Nearest(key, keys); similar != "" {
		hint = "did you mean " + similar + "?"
	}
	return Field{}, &FieldError{key, "unknown key: " + hint}
}
