package config

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// fileArguments end the names of arguments of upstream's programs that name files which
// the programs read.
var fileArguments = []string{"authority", "certificate", "config", "file", "key", "resolv-conf"}

// checkFiles returns an error for each file that c names and that would keep a start
// waiting without a word: a FIFO, a socket or a device. The part that reads a file tells
// all other faults, such as that it is missing, or a folder.
func (c *Config) checkFiles() error {
	var faults []error
	for _, f := range c.Fields() {
		switch {
		case f.file:
			if err := checkFile(f.String()); err != nil {
				faults = append(faults, &FieldError{f.Key, err.Error()})
			}
		case strings.HasSuffix(f.Key, "-arg"):
			for _, arg := range f.value.Interface().([]string) {
				name, path, _ := strings.Cut(arg, "=")
				if !slices.ContainsFunc(fileArguments, func(ending string) bool { return strings.HasSuffix(name, ending) }) {
					continue
				}
				if err := checkFile(path); err != nil {
					faults = append(faults, &FieldError{f.Key, name + ": " + err.Error()})
				}
			}
		}
	}
	return errors.Join(faults...)
}

func checkFile(path string) error {
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return nil
	}
	return datadir.CheckRegular(path)
}
