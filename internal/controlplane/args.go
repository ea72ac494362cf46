package controlplane

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// program is one of upstream's programs whose arguments a user may give.
type program struct {
	// name is upstream's, option the one of kedge that takes the arguments.
	name, option string
	// owned are arguments that would have no effect, and what to do instead.
	owned map[string]string
}

// Arguments that all three programs share and kedge has its own way for.
const (
	useVerbosity = "set kedge's own v"
	servedByOne  = "kedge serves the API on one port with certificates of its own; use https-listen-port, bind-address and tls-san"
	inProcess    = "it reaches the API server in process"
	oneLeader    = "kedge decides itself which server's runs"
)

var (
	apiServerProgram = program{"kube-apiserver", "kube-apiserver-arg", map[string]string{
		"bind-address":                     servedByOne,
		"secure-port":                      servedByOne,
		"bind-network":                     servedByOne,
		"cert-dir":                         servedByOne,
		"tls-cert-file":                    servedByOne + "; for a name of its own use tls-sni-cert-key",
		"tls-private-key-file":             servedByOne + "; for a name of its own use tls-sni-cert-key",
		"tls-cipher-suites":                servedByOne,
		"tls-curve-preferences":            servedByOne,
		"tls-min-version":                  servedByOne,
		"http2-max-streams-per-connection": servedByOne,
		"disable-http2-serving":            servedByOne,
		"permit-port-sharing":              servedByOne,
		"permit-address-sharing":           servedByOne,
		"v":                                useVerbosity,
		"vmodule":                          useVerbosity,
		"logging-format":                   "kedge writes all logs in one format",
	}}
	controllersProgram = program{"kube-controller-manager", "kube-controller-manager-arg", map[string]string{
		"kubeconfig":                inProcess,
		"master":                    inProcess,
		"authentication-kubeconfig": inProcess,
		"authorization-kubeconfig":  inProcess,
		"leader-elect":              oneLeader,
		"v":                         useVerbosity,
		"vmodule":                   useVerbosity,
		"logging-format":            "kedge writes all logs in one format",
	}}
	schedulerProgram = program{"kube-scheduler", "kube-scheduler-arg", map[string]string{
		"kubeconfig":                inProcess,
		"master":                    inProcess,
		"authentication-kubeconfig": inProcess,
		"authorization-kubeconfig":  inProcess,
		"leader-elect":              oneLeader,
		"write-config-to":           "it would end without having scheduled anything",
		"v":                         useVerbosity,
		"vmodule":                   useVerbosity,
		"logging-format":            "kedge writes all logs in one format",
	}}
)

// parse sets args, each name=value, in the flags of the program's options, and
// returns every fault at once. It comes after kedge has set its own fields of
// the same options: a user's word is the last.
func (p program) parse(flags cliflag.NamedFlagSets, args []string) error {
	all := pflag.NewFlagSet(p.name, pflag.ContinueOnError)
	all.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, set := range flags.FlagSets {
		all.AddFlagSet(set)
	}
	var faults []error
	for _, arg := range args {
		if err := p.set(all, arg); err != nil {
			faults = append(faults, fmt.Errorf("%s: %q: %w", p.option, arg, err))
		}
	}
	return errors.Join(faults...)
}

func (p program) set(flags *pflag.FlagSet, arg string) error {
	name, value, found := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	if !found {
		return errors.New("is not name=value")
	}
	flag := flags.Lookup(name)
	if flag == nil {
		return fmt.Errorf("%s has no argument %s", p.name, name)
	}
	if instead, ok := p.owned[flag.Name]; ok {
		return fmt.Errorf("%s would have no effect: %s", flag.Name, instead)
	}
	return flags.Set(name, value)
}
