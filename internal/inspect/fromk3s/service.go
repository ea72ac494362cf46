package fromk3s

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// services are the names of k3s's services.
var services = []string{"k3s", "k3s-agent"}

// unitFolders are where k3s's install.sh puts units and their environment.
var unitFolders = []string{"/etc/systemd/system", "/etc/init.d", "/etc/rancher/k3s"}

// service is what k3s's service gives to k3s.
type service struct {
	// unit is the path of the service's unit, and variableFile that of its environment.
	unit, variableFile string
	environment        []string
	// config is the value of --config, and flags are the others.
	config string
	flags  []flag
}

type flag struct {
	name   string
	values []string
}

// service finds k3s's service. It is empty if there is none.
func (i *installation) service() (*service, error) {
	s := &service{}
	for _, folder := range unitFolders {
		for _, name := range services {
			unit := filepath.Join(folder, name)
			if folder == "/etc/systemd/system" {
				unit += ".service"
			}
			if folder == "/etc/rancher/k3s" {
				if err := i.readEnvironment(s, unit+".env"); err != nil {
					return nil, err
				}
				continue
			}
			text, err := os.ReadFile(i.path(unit))
			if err == nil && s.unit == "" {
				s.unit = unit
				s.read(string(text))
				err = i.readEnvironment(s, unit+".env")
				if i.exists(unit + ".d") {
					i.add(Changes, unit+".d", name, "Copy what you need of it to /etc/systemd/system/kedge.service.d.")
				}
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("read k3s's service: %w", err)
			}
		}
	}
	return s, nil
}

// readEnvironment reads the NAME=value lines of a file, if it is there.
func (i *installation) readEnvironment(s *service, file string) error {
	text, err := os.ReadFile(i.path(file))
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

// configFile returns the configuration file that the service names.
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
		at := slices.IndexFunc(s.flags, func(f flag) bool { return f.name == name })
		if at < 0 {
			s.flags = append(s.flags, flag{name: name})
			at = len(s.flags) - 1
		}
		s.flags[at].values = append(s.flags[at].values, value)
	}
}
