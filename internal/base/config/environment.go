package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	ownPrefix = "KEDGE_"
	k3sPrefix = "K3S_"
)

// FileVariables are the variables that name the configuration file.
var FileVariables = []string{ownPrefix + "CONFIG_FILE", k3sPrefix + "CONFIG_FILE"}

// awsVariables are the variables of S3's keys that k3s and other programs take.
var awsVariables = map[string]string{
	"AWS_ACCESS_KEY_ID": "s3-access-key", "AWS_SECRET_ACCESS_KEY": "s3-secret-key", "AWS_SESSION_TOKEN": "s3-session-token",
}

// Variables returns the names of all environment variables that set a key of kedge's. The
// first is kedge's own.
func Variables(key string) []string {
	var names []string
	for _, f := range Default().Fields() {
		if f.Key == key {
			names = append(names, f.Env())
		}
	}
	var others []string
	for name, means := range k3sVariables {
		if row, _ := K3sKeyOf(means); means == key || row.To == key {
			others = append(others, name, ownPrefix+strings.TrimPrefix(name, k3sPrefix))
		}
	}
	slices.Sort(others)
	return slices.Compact(append(names, slices.DeleteFunc(others, func(name string) bool { return slices.Contains(names, name) })...))
}

// loadEnv reads the environment: first the variables of S3, then k3s's, then those that are
// k3s's with another prefix, and then kedge's own. A later variable wins over an earlier one.
// environment has NAME=value.
func (c *Config) loadEnv(environment []string, sources Sources) error {
	var faults []error
	passes := [4][]string{}
	means, values := map[string]string{}, map[string]string{}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if value == "" || slices.Contains(FileVariables, name) {
			continue
		}
		if says := k3sNoKeys[noOwnPrefix(name)]; says != "" {
			c.note(Notice{"$" + name, name, Needless, says})
			continue
		}
		key, pass := c.variable(name)
		if pass < 0 {
			continue
		}
		if key == "" {
			c.note(Notice{"$" + name, name, Needless, "No setting has this variable" + c.similarVariable(name)})
			continue
		}
		means[name], values[name] = key, value
		passes[pass] = append(passes[pass], name)
	}
	for i, names := range passes {
		slices.Sort(names)
		for _, name := range names {
			key := means[name]
			err := c.set(key, given{values: []string{values[name]}, source: "$" + name}, sources)
			if err != nil {
				faults = append(faults, fmt.Errorf("environment variable %s: %w", name, err))
			}
			if row, _ := K3sKeyOf(key); i == 1 && row.Verdict == Same {
				c.note(Notice{"$" + name, name, Alias, "This is k3s's name: kedge's is " + Variables(key)[0] + "."})
			}
		}
	}
	return errors.Join(faults...)
}

// noOwnPrefix returns the name of a variable as k3s has it.
func noOwnPrefix(name string) string {
	if suffix, own := strings.CutPrefix(name, ownPrefix); own {
		return k3sPrefix + suffix
	}
	return name
}

// variable returns the key that a variable means, empty if it should be one of kedge's and
// is not, and the pass of loadEnv, -1 if it is nothing of kedge's.
func (c *Config) variable(name string) (key string, pass int) {
	if key, ok := awsVariables[name]; ok {
		return key, 0
	}
	if strings.HasPrefix(name, k3sPrefix) {
		return k3sVariables[name], 1
	}
	suffix, own := strings.CutPrefix(name, ownPrefix)
	if !own {
		return "", -1
	}
	for _, f := range c.Fields() {
		if f.Env() == name {
			return f.Key, 3
		}
	}
	if key, ok := k3sVariables[k3sPrefix+suffix]; ok {
		return key, 2
	}
	key = strings.ToLower(strings.ReplaceAll(suffix, "_", "-"))
	if row, ok := K3sKeyOf(key); ok && row.Verdict != Same {
		return key, 2
	}
	return "", 2
}

// similarVariable ends a sentence about a variable with a hint, if there is one.
func (c *Config) similarVariable(name string) string {
	var keys []string
	for _, f := range c.Fields() {
		keys = append(keys, f.Key)
	}
	suffix := strings.TrimPrefix(strings.TrimPrefix(name, ownPrefix), k3sPrefix)
	similar := Nearest(suffix, keys)
	if similar == "" {
		return "."
	}
	return ": did you mean " + Variables(similar)[0] + "?"
}

// Flag is a flag of a command line with all of its values. A switch has the value true or false.
type Flag struct {
	Name   string
	Values []string
}

// SetFlags calls SetFlag for each of several flags. It returns all errors.
func (c *Config) SetFlags(flags []Flag) error {
	var faults []error
	for _, flag := range flags {
		faults = append(faults, c.SetFlag(flag.Name, flag.Values...))
	}
	return errors.Join(faults...)
}

// SetFlag gives the setting that the name of a flag means the values that a user gave. The
// name may be k3s's.
func (c *Config) SetFlag(name string, values ...string) error {
	if c.flags == nil {
		c.flags = Sources{}
	}
	return c.set(name, given{values: values, source: "--" + name}, c.flags)
}
