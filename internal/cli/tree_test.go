package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/inspect/settings"
)

// leaf is a command without subcommands, by the words that a user calls it by.
type leaf struct {
	words []string
	*cli.Command
}

func (l leaf) String() string { return strings.Join(l.words, " ") }

// leaves are the commands of app that parse their flags.
func leaves(app *cli.App) (found []leaf) {
	var walk func(words []string, commands []*cli.Command)
	walk = func(words []string, commands []*cli.Command) {
		for _, c := range commands {
			here := append(slices.Clone(words), c.Name)
			walk(here, c.Subcommands)
			if len(c.Subcommands) == 0 && !c.SkipFlagParsing {
				found = append(found, leaf{here, c})
			}
		}
	}
	walk(nil, app.Commands)
	return found
}

// value is what a flag is given in these tests.
func value(f cli.Flag) string {
	switch f := f.(type) {
	case *cli.BoolFlag:
		return "true"
	case *cli.GenericFlag:
		switch f.Value.(type) {
		case *count, *localPort:
			return "3"
		}
		return "1h"
	}
	return "word"
}

// TestFlagsAnywhere gives all flags of every command before, between and after
// arguments, with = and without.
func TestFlagsAnywhere(t *testing.T) {
	all := leaves(newApp(&workload{}))
	if len(all) < 25 {
		t.Fatalf("only %d commands", len(all))
	}
	for i, l := range all {
		var joined, parted []string
		for _, f := range l.Flags {
			name := "--" + f.Names()[0]
			joined = append(joined, name+"="+value(f))
			parted = append(parted, name)
			if _, isBool := f.(*cli.BoolFlag); !isBool {
				parted = append(parted, value(f))
			}
		}
		for _, form := range [][]string{joined, parted} {
			for at := range 3 {
				app := newApp(&workload{})
				c, ran := leaves(app)[i].Command, false
				c.Before = nil
				c.Action = func(c *cli.Context) error {
					ran = true
					if got := c.Args().Slice(); !slices.Equal(got, []string{"a", "-"}) {
						t.Errorf("%s: the arguments are %q", l, got)
					}
					for _, f := range l.Flags {
						if !c.IsSet(f.Names()[0]) {
							t.Errorf("%s: --%s is not set", l, f.Names()[0])
						}
					}
					return nil
				}
				words := slices.Insert([]string{"a", "-"}, at, form...)
				if err := runApp(t.Context(), app, slices.Concat([]string{"kedge"}, l.words, words)); err != nil || !ran {
					t.Fatalf("%s %q: %v", l, words, err)
				}
			}
		}
	}
}

// TestArgumentsAfterDashes has words after -- that look like flags.
func TestArgumentsAfterDashes(t *testing.T) {
	for _, test := range []struct{ words, want string }{
		{"image import a --data-dir=/x -- --b -c", "image import --data-dir=/x -- a --b -c"},
		{"image import -- --b", "image import -- --b"},
		{"image export -o - a", "image export -o - a"},
		{"image export a -o -", "image export -o - a"},
		{"kubectl get pods -A", "kubectl get pods -A"},
		{"uninstal x --yes", "uninstal x --yes"},
		{"--version", "--version"},
		{"snapshot restore x --help", "snapshot restore --help x"},
	} {
		got := flagsFirst(newApp(&workload{}), append([]string{"kedge"}, strings.Fields(test.words)...))
		if strings.Join(got[1:], " ") != test.want {
			t.Errorf("%s: got %q", test.words, got)
		}
	}
	words := []string{"kedge", "snapshot", "restore", "x", "--da", completionWord}
	if got := flagsFirst(newApp(&workload{}), words); !slices.Equal(got, words) {
		t.Errorf("a completion became %q", got)
	}
}

// TestTypedValues gives every flag that has a type a value that is none, and wants the
// value and what is right in the message.
func TestTypedValues(t *testing.T) {
	const nonsense = "no / sense" // and no name of a host
	fields := config.Default()
	kinds := map[string]config.Field{}
	for _, f := range fields.Fields() {
		kinds[f.Key] = f
	}
	checked := map[string]bool{} // The settings are the same flags everywhere.
	for i, l := range leaves(newApp(&workload{})) {
		for _, f := range l.Flags {
			name, want := f.Names()[0], ""
			switch f.(type) {
			case *cli.BoolFlag:
				want = fmt.Sprintf("takes true or false, got %q", nonsense)
			case *cli.GenericFlag:
				want = "such as"
			case *cli.StringFlag:
				if kinds[name].IsInt() {
					want = "takes a whole number such as"
				}
			case *cli.StringSliceFlag:
			default:
				t.Errorf("%s: flag --%s has a type that this test does not know", l, name)
			}
			if want == "" || checked[name] {
				continue
			}
			checked[name] = kinds[name].Key != ""
			app := newApp(&workload{})
			c := leaves(app)[i].Command
			c.Before = nil
			c.Action = func(c *cli.Context) error { _, err := loadConfig(c); return err }
			err := runApp(t.Context(), app, slices.Concat([]string{"kedge"}, l.words, []string{"--" + name + "=" + nonsense}))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "parse error") {
				t.Errorf("%s --%s=%s: %v", l, name, nonsense, err)
			}
		}
	}
}

// kubeconfigLess are commands beside others that call the API, and call it in another
// way or not at all.
var kubeconfigLess = []string{"token rotate", "certificate check", "certificate rotate"}

// apart is the family that has nothing to do with the kedge of this host.
const apart = "cluster"

// TestFamilies wants all commands of a family to take the same flags of kedge's
// configuration, and to be led to the API and to print in the same way.
func TestFamilies(t *testing.T) {
	var settings []string
	for _, f := range settingFlags(config.ServerRole, "", nil) {
		settings = append(settings, f.Names()...)
	}
	families := map[string][]leaf{}
	for _, l := range leaves(newApp(&workload{})) {
		if len(l.words) > 1 {
			families[l.words[0]] = append(families[l.words[0]], l)
		}
	}
	if len(families) < 7 {
		t.Errorf("only %d families", len(families))
	}
	for family, members := range families {
		kubeconfig := slices.ContainsFunc(members, func(l leaf) bool { return flagOf(l, kubeconfigFlag) != nil })
		for _, l := range members {
			for _, name := range settings {
				if family != apart && flagOf(l, name) == nil {
					t.Errorf("%s does not take --%s", l, name)
				}
			}
			if kubeconfig && !slices.Contains(kubeconfigLess, l.String()) && flagOf(l, kubeconfigFlag) == nil {
				t.Errorf("%s does not take --%s, and others of %s do", l, kubeconfigFlag, family)
			}
			if output := flagOf(l, outputFlag); output != nil && !slices.Equal(output.Names(), []string{outputFlag, "o"}) {
				t.Errorf("%s: --%s is also %q", l, outputFlag, output.Names())
			}
		}
	}
}

func flagOf(l leaf, name string) cli.Flag {
	i := slices.IndexFunc(l.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return nil
	}
	return l.Flags[i]
}

// TestAgree compares flags with the settings of a kedge that runs.
func TestAgree(t *testing.T) {
	running := config.Default()
	running.DataDir = "/srv"
	running.Server.Snapshots.S3Settings.Bucket = "own"
	for name, test := range map[string]struct {
		args []string
		err  error
		want []string
	}{
		"nothing given":   {nil, errors.New("not asked"), nil},
		"the same":        {[]string{"--data-dir=/srv", "--s3-bucket=own"}, nil, nil},
		"another folder":  {[]string{"--data-dir=/other"}, nil, []string{"--data-dir=/other would have no effect", "data-dir=/srv"}},
		"two others":      {[]string{"--s3-bucket=x", "--s3-folder=y"}, nil, []string{"--s3-bucket=x", "--s3-folder=y"}},
		"a secret":        {[]string{"--s3-secret-key=hush", "--s3-access-key=hush"}, nil, []string{"leave --s3-secret-key out"}},
		"its own":         {[]string{"--snapshot-retention=2"}, nil, nil},
		"a file":          {[]string{"--config=/dev/null"}, nil, []string{"--data-dir=/var/lib/kedge", "data-dir=/srv"}},
		"no kedge":        {[]string{"--data-dir=/other"}, localapi.ErrNotRunning, nil},
		"a bad value":     {[]string{"--log-max-size=x"}, nil, []string{"log-max-size"}},
		"it cannot be so": {[]string{"--data-dir=/srv"}, errors.New("refused"), []string{"refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			app := newApp(&workload{})
			app.Commands = []*cli.Command{{Name: "x", Flags: runningFlags(nil), Action: func(c *cli.Context) error {
				return agree(c, []string{retentionFlag}, func() (settings.Printed, error) {
					return settings.Printed{Role: config.ServerRole, Settings: running.Settings(nil, config.ServerRole)}, test.err
				})
			}}}
			err := runApp(t.Context(), app, append([]string{"kedge", "x"}, test.args...))
			if (err == nil) != (len(test.want) == 0) {
				t.Fatalf("got %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in %v", want, err)
				}
			}
			if strings.Contains(fmt.Sprint(err), "hush") {
				t.Error("a secret is in " + strconv.Quote(err.Error()))
			}
		})
	}
}
