// Package arguments parses the arguments of upstream's programs that a user
// gives in kedge's configuration, such as kube-apiserver-arg. The packages
// apiserver, controllers and scheduler call it, each with its own Program.
package arguments

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// Program is one of upstream's programs.
type Program struct {
	// Name is the program's, and Option the setting of kedge that takes its
	// arguments.
	Name, Option string
	// Refused are arguments that would have no effect. The values say what to do
	// instead. The arguments for logging need not be listed: no program takes them.
	Refused map[string]string
}

// Values of Program.Refused for the programs that are clients of the API server.
const (
	InProcess = "it reaches the API server in process"
	OneLeader = "kedge decides itself which server's runs"
)

// logging are the arguments for logging, which every program of upstream has.
var logging = map[string]string{
	"v":              "set kedge's own v",
	"vmodule":        "set kedge's own v",
	"logging-format": "kedge writes all logs in one format",
}

// Parse sets args, each name=value, in the flags of the program's options. It
// returns all faults at once. Call it after kedge has set its own fields of the
// same options, because the user's arguments win.
func (p Program) Parse(flags cliflag.NamedFlagSets, args []string) error {
	all := pflag.NewFlagSet(p.Name, pflag.ContinueOnError)
	all.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, set := range flags.FlagSets {
		all.AddFlagSet(set)
	}
	var faults []error
	for _, arg := range args {
		if err := p.set(all, arg); err != nil {
			faults = append(faults, fmt.Errorf("%s: %q: %w", p.Option, arg, err))
		}
	}
	return errors.Join(faults...)
}

func (p Program) set(flags *pflag.FlagSet, arg string) error {
	name, value, found := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if !found {
		return errors.New("is not name=value")
	}
	flag := flags.Lookup(name)
	if flag == nil {
		return fmt.Errorf("%s has no argument %s", p.Name, name)
	}
	for _, refused := range []map[string]string{p.Refused, logging} {
		if instead, ok := refused[flag.Name]; ok {
			return fmt.Errorf("%s would have no effect: %s", flag.Name, instead)
		}
	}
	return flags.Set(name, value)
}
