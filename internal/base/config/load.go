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

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/jsonsyntax"
)

// DefaultPath is where the configuration file is looked for if nothing else is
// said. There it may be missing.
const DefaultPath = "/etc/kedge/config.yaml"

// Load reads the configuration: the defaults, over them the file at path and
// the drop-ins in the folder path.d in the order of their names, over them
// KEDGE_* and K3S_* variables of the environment, over them the overrides (the flags).
// A drop-in's key ending in + adds to a list instead of replacing it. It
// returns every fault it finds, not only the first. Names of k3s's mean what the table of
// K3sKeys says.
func Load(path string, overrides ...func(*Config) error) (*Config, error) {
	c, _, err := LoadSources(path, overrides...)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// LoadSources is Load, and tells where values came from too, except those that overrides
// set without SetFlag. With an error come the values that could be read.
func LoadSources(path string, overrides ...func(*Config) error) (*Config, Sources, error) {
	files, err := configFiles(path)
	if err != nil {
		return Default(), Sources{}, err
	}
	return LoadFiles(files, os.Environ(), overrides...)
}

// LoadFiles is LoadSources for some files and an environment of NAME=value. With it,
// `kedge check-config` reads the configuration of a service that does not run.
func LoadFiles(files, environment []string, overrides ...func(*Config) error) (*Config, Sources, error) {
	c, sources := Default(), Sources{}
	var faults []error
	for _, file := range files {
		faults = append(faults, c.loadFile(file, sources))
	}
	faults = append(faults, c.loadEnv(environment, sources))
	for _, override := range overrides {
		faults = append(faults, override(c))
	}
	maps.Copy(sources, c.flags)
	c.flags = nil
	faults = append(faults,
		readToken("token", &c.Token, c.TokenFile, sources),
		readToken("agent-token", &c.Server.AgentToken, c.Server.AgentTokenFile, sources))
	faults = append(faults, c.readVXLAN(), c.Validate(), c.checkFiles())
	c.applyProfile(sources)
	return c, sources, errors.Join(faults...)
}

// readToken reads the token of a key from a file, if there is one.
func readToken(key string, token *string, file string, sources Sources) error {
	switch {
	case file == "":
		return nil
	case *token != "":
		return &FieldError{key + "-file", "cannot be set with " + key + ". Remove one of them"}
	}
	text, err := datadir.ReadText(file)
	if *token = strings.TrimSpace(string(text)); err == nil && *token == "" {
		err = fmt.Errorf("%s is empty: write the token into it", file)
	}
	sources[key] = file
	if err != nil {
		return &FieldError{key + "-file", err.Error()}
	}
	return nil
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
	dropIns, err := DropIns(path)
	return append(files, dropIns...), err
}

// DropIns returns the files in the folder path.d that are read after the configuration file
// at path, in their order.
func DropIns(path string) ([]string, error) {
	var dropIns []string
	for _, ending := range []string{"*.yaml", "*.yml"} {
		files, err := filepath.Glob(filepath.Join(path+".d", ending))
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		dropIns = append(dropIns, files...)
	}
	slices.Sort(dropIns)
	return dropIns, nil
}

func (c *Config) loadFile(path string, sources Sources) error {
	text, err := datadir.ReadText(path)
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
		source := fmt.Sprintf("%s:%d", path, node.Line)
		given := given{list: node.Kind == yaml.SequenceNode, add: add, source: source}
		if given.values, err = scalars(key, node); err == nil {
			err = c.set(key, given, sources)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", source, err))
		}
	}
	return errors.Join(faults...)
}

// given is what a file, a variable or a flag says about a setting.
type given struct {
	values []string
	// list says that the values were written as a list, and add that they are added to
	// what there is.
	list, add bool
	// source says where it was said, as Sources do.
	source string
}

// set gives the setting that a name means the values that were given. The name is one of
// kedge's or one of k3s's: see translate.
func (c *Config) set(name string, given given, sources Sources) error {
	key, values, err := c.translate(name, given.values, given.source)
	if err != nil || key == "" {
		return err
	}
	field, fault := c.field(key)
	if fault != nil {
		c.note(Notice{given.source, name, Refused, fault.Detail})
		return fault
	}
	if given.list && !field.IsList() {
		return &FieldError{name, "takes one value, got a list"}
	}
	source := given.source
	if given.add && field.IsList() && field.String() != "" {
		values = append(slices.Clone(field.value.Interface().([]string)), values...)
		source = sources.of(key) + ", " + source
	}
	sources[key] = source
	return field.Set(values...)
}

// scalars returns the text of a YAML scalar, or those of a sequence of them. name is that
// of the setting.
func scalars(name string, node yaml.Node) ([]string, error) {
	nodes := []*yaml.Node{&node}
	if node.Kind == yaml.SequenceNode {
		nodes = node.Content
	}
	texts := make([]string, len(nodes))
	for i, n := range nodes {
		if n.Kind != yaml.ScalarNode {
			return nil, &FieldError{name, "takes plain values, got a mapping or a nested list"}
		}
		if n.Tag != "!!null" {
			texts[i] = n.Value
		}
	}
	return texts, nil
}

// field finds a setting by its key. If there is none, the error names a similar key.
func (c *Config) field(key string) (Field, *FieldError) {
	fields := c.Fields()
	var keys []string
	for _, f := range fields {
		if f.Key == key {
			return f, nil
		}
		keys = append(keys, f.Key)
	}
	for _, row := range k3sKeys {
		if row.Verdict == Alias {
			keys = append(keys, row.Key)
		}
	}
	hint := "run `kedge server --help` for the list"
	if similar := Nearest(key, keys); similar != "" {
		hint = "did you mean " + similar + "?"
	}
	return Field{}, &FieldError{key, "unknown key: " + hint}
}
