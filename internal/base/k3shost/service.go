// Package k3shost reads how k3s is configured on a host: its configuration file and drop-ins, the
// flags and the environment of its service, and settings of the kubelet and of containerd. It
// changes nothing. The packages inspect/fromk3s and adopt call it.
package k3shost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// kinds are where install.sh puts units, and the endings of their names: those of systemd,
// and scripts of OpenRC.
var kinds = []struct{ folder, ending string }{{"/etc/systemd/system", ".service"}, {"/etc/init.d", ""}}

// service is what k3s's service gives to k3s. Paths are those on the host.
type service struct {
	// unit is the path of the unit of systemd, or of the script of OpenRC. dropIns is the
	// folder of drop-ins of the unit. Both are empty if there is none.
	unit, dropIns string
	// variableFile is the path of the file with the environment, and environment has its
	// variables as NAME=value.
	variableFile string
	environment  []string
	// flags are the flags of the command line except --config, in their order, each once.
	flags []config.Flag

	config string
}

// readService finds k3s's service on the host whose files are below root. The service is empty if
// there is none. If there are several, it is the server's. The error is one of reading a file.
func readService(root string) (*service, error) {
	s := &service{}
	for _, kind := range kinds {
		units, err := find(filepath.Join(root, kind.folder), kind.ending)
		if err != nil {
			return nil, err
		}
		if len(units) == 0 || s.unit != "" {
			continue
		}
		s.unit = filepath.Join(kind.folder, units[0])
		text, err := datadir.ReadText(filepath.Join(root, s.unit))
		if err != nil {
			return nil, fmt.Errorf("read k3s's service: %w", err)
		}
		s.read(string(text))
		if _, err := os.Stat(filepath.Join(root, s.unit+".d")); err == nil {
			s.dropIns = s.unit + ".d"
		}
		if err := s.readEnvironment(root, s.unit+".env"); err != nil {
			return nil, err
		}
	}
	files, err := find(filepath.Join(root, ConfigFolder), ".env")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if err := s.readEnvironment(root, filepath.Join(ConfigFolder, file)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// find returns the names of k3s's files with an ending: k3s first, then those with another
// name, which INSTALL_K3S_NAME gives.
func find(folder, ending string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find k3s's service: %w", err)
	}
	var names []string
	for _, entry := range entries {
		name, fits := strings.CutSuffix(entry.Name(), ending)
		if fits && !entry.IsDir() && (name == "k3s" || strings.HasPrefix(name, "k3s-")) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for i := range names {
		names[i] += ending
	}
	return names, nil
}

// readEnvironment reads the NAME=value lines of a file, if it is there.
func (s *service) readEnvironment(root, file string) error {
	text, err := datadir.ReadText(filepath.Join(root, file))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the environment of k3s's service: %w", err)
	}
	s.variableFile = file
	for line := range strings.Lines(string(text)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if name, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			s.environment = append(s.environment, name+"="+strings.Trim(value, `'"`))
		}
	}
	return nil
}

// configFile returns the configuration file that the service names, empty if it names none.
func (s *service) configFile() string {
	file := s.config
	for _, variable := range s.environment {
		if name, value, _ := strings.Cut(variable, "="); slices.Contains(config.FileVariables, name) && file == "" {
			file = value
		}
	}
	return file
}

// read reads a unit of systemd or a script of OpenRC.
func (s *service) read(unit string) {
	unit = strings.ReplaceAll(unit, "\\\n", " ")
	for line := range strings.Lines(unit) {
		line = strings.TrimSpace(line)
		if variable, ok := strings.CutPrefix(line, "Environment="); ok {
			s.environment = append(s.environment, strings.Trim(variable, `'"`))
			s.variableFile = s.unit
		}
		command, ok := strings.CutPrefix(line, "ExecStart=")
		if !ok {
			if command, ok = strings.CutPrefix(line, "command_args="); ok {
				command = "k3s " + strings.Trim(command, `"`)
			}
		}
		if ok {
			s.setFlags(words(command))
		}
	}
}

// words splits a command as a shell does: quotes hold words together.
func words(command string) []string {
	var all []string
	word, quote, begun := strings.Builder{}, rune(0), false
	for _, r := range command {
		switch {
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case r == quote:
			quote = 0
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun || word.Len() > 0 {
				all = append(all, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(r)
		}
	}
	if begun || word.Len() > 0 {
		all = append(all, word.String())
	}
	return all
}

// setFlags takes the flags of a command line: k3s server --FLAG VALUE --FLAG=VALUE.
func (s *service) setFlags(line []string) {
	switches, letters := map[string]bool{}, map[string]string{}
	for _, f := range config.Default().Fields() {
		switches[f.Key] = f.IsBool()
		for _, letter := range config.Letters(f.Key) {
			letters[letter] = f.Key
		}
	}
	for _, row := range config.K3sOnly() {
		switches[row.Key] = row.IsSwitch()
	}
	letters["c"] = "config"
	for i := 0; i < len(line); i++ {
		name, value, joined := strings.Cut(strings.TrimLeft(line[i], "-"), "=")
		if !strings.HasPrefix(line[i], "-") {
			continue
		}
		if long := letters[name]; long != "" {
			name = long
		}
		switch {
		case joined:
		case switches[name]:
			value = "true"
		case i+1 < len(line):
			i++
			value = line[i]
		}
		if name == "config" {
			s.config = value
			continue
		}
		at := slices.IndexFunc(s.flags, func(f config.Flag) bool { return f.Name == name })
		if at < 0 {
			s.flags = append(s.flags, config.Flag{Name: name})
			at = len(s.flags) - 1
		}
		s.flags[at].Values = append(s.flags[at].Values, value)
	}
}
