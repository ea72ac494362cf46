package k3shost

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// The folders of k3s, below the root of a host. DataFolder is the default of data-dir.
const (
	ConfigFolder = "/etc/rancher/k3s"
	DataFolder   = "/var/lib/rancher/k3s"
)

// Settings are what k3s was configured with.
type Settings struct {
	// Config has kedge's keys for k3s's, and notices of what has none.
	Config *config.Config
	// Sources are where values came from: FILE:LINE, $VARIABLE or --FLAG. Files begin with
	// the root.
	Sources config.Sources
	// Faults are what is wrong with the values. A *config.FieldError says of which key.
	// Other faults are of files that cannot be read.
	Faults []error
	// Unit is the path of the service's unit below the root, DropIns the folder of its drop-ins, and
	// VariableFile the file with its environment. They are empty if there is no such thing.
	Unit, DropIns, VariableFile string
}

// Read reads the configuration of k3s on the host whose root is root. Without files of k3s,
// it returns defaults. It fails if k3s's service, or the list of drop-ins, cannot be read.
func Read(root string) (*Settings, error) {
	service, err := readService(root)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(root, cmp.Or(service.configFile(), ConfigFolder+"/config.yaml"))
	files, err := config.DropIns(file)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(file); err == nil {
		files = slices.Insert(files, 0, file)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read k3s's configuration: %w", err)
	}
	s := &Settings{Unit: service.unit, DropIns: service.dropIns, VariableFile: service.variableFile}
	var fault error
	s.Config, s.Sources, fault = config.LoadFiles(files, service.environment, func(c *config.Config) error { return c.SetFlags(service.flags) })
	s.Faults = flatten(fault)
	return s, nil
}

// DataDir returns k3s's folder of data, below the root.
func (s *Settings) DataDir() string {
	if s.Sources["data-dir"] == "" {
		return DataFolder
	}
	return s.Config.DataDir
}

// Unreadable returns the faults of files that cannot be read.
func (s *Settings) Unreadable() error {
	var field *config.FieldError
	return errors.Join(slices.DeleteFunc(slices.Clone(s.Faults), func(err error) bool { return errors.As(err, &field) })...)
}

// flatten returns the errors that were joined to one.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}
