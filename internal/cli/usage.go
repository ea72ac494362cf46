package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// completionWord is the last word of a command line that asks for completions
// (urfave/cli/v2, help.go, checkShellCompleteFlag).
const completionWord = "--generate-bash-completion"

// runApp runs the command line args. Flags may stand after arguments.
func runApp(ctx context.Context, app *cli.App, args []string) error {
	return app.RunContext(ctx, flagsFirst(app, args))
}

// flagsFirst moves the flags of a command before its arguments, because urfave/cli
// takes every word after the first argument for another argument. Words after -- are
// arguments. The words of a command that parses its own flags are not moved.
func flagsFirst(app *cli.App, args []string) []string {
	if args[len(args)-1] == completionWord {
		return args
	}
	commands, known := app.Commands, app.Flags
	i := 1
	for ; i < len(args) && len(commands) > 0; i++ {
		word := args[i]
		if strings.HasPrefix(word, "-") {
			if takesNext(known, word) {
				i++
			}
			continue
		}
		at := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(word) })
		if at < 0 || commands[at].SkipFlagParsing {
			return args
		}
		commands, known = commands[at].Subcommands, commands[at].Flags
	}
	i = min(i, len(args))
	command := args[:i]
	var flags, arguments []string
	for ; i < len(args); i++ {
		switch word := args[i]; {
		case word == "--":
			arguments = slices.Concat([]string{"--"}, arguments, args[i+1:])
			i = len(args)
		case word == "-" || !strings.HasPrefix(word, "-"):
			arguments = append(arguments, word)
		default:
			flags = append(flags, word)
			if takesNext(known, word) && i+1 < len(args) {
				i++
				flags = append(flags, args[i])
			}
		}
	}
	return slices.Concat(command, flags, arguments)
}

// takesNext tells whether the word after a flag is the flag's value.
func takesNext(known []cli.Flag, word string) bool {
	name, _, joined := strings.Cut(strings.TrimLeft(word, "-"), "=")
	if joined {
		return false
	}
	i := slices.IndexFunc(known, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return false // An unknown flag, or --help.
	}
	_, isBool := known[i].(*cli.BoolFlag)
	return !isBool
}

// complete sets what every command has in common.
func complete(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError, c.HideHelpCommand = usageError, true
		if len(c.Subcommands) > 0 {
			c.Action = func(c *cli.Context) error { return needsCommand(c, cli.ShowSubcommandHelp) }
		}
		complete(c.Subcommands)
	}
}

// needsCommand is the action of a command that has subcommands and was given none, or
// an unknown one.
func needsCommand(c *cli.Context, help func(*cli.Context) error) error {
	if c.NArg() == 0 {
		return help(c)
	}
	var names []string
	for _, command := range c.Command.Subcommands {
		// A hint must not lead to a command that destroys something.
		if !slices.Contains([]string{"killall", "uninstall"}, command.Name) {
			names = append(names, command.Names()...)
		}
	}
	word := c.Args().First()
	return fmt.Errorf("unknown command %q%s Run `%s --help` for the list", word, didYouMean("", config.Nearest(word, names)), commandName(c))
}

// commandName returns the words by which a user calls the command of c.
func commandName(c *cli.Context) string {
	if c.Command == nil || c.Command.HelpName == "" {
		return c.App.Name
	}
	return c.Command.HelpName
}

// didYouMean ends a sentence about an unknown name, with a hint if there is one.
func didYouMean(prefix, name string) string {
	if name == "" {
		return "."
	}
	return ": did you mean " + prefix + name + "?"
}

// usageError says in kedge's words what Go's package flag found wrong with the flags
// of a command.
func usageError(c *cli.Context, err error, _ bool) error {
	fault := plainFlagError(c, err).Error()
	if !strings.HasSuffix(fault, "?") && !strings.HasSuffix(fault, ".") {
		fault += "."
	}
	return fmt.Errorf("%s Run `%s --help` for the list of flags", fault, commandName(c))
}

func plainFlagError(c *cli.Context, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		var names []string
		if c.Command != nil {
			for _, f := range c.Command.Flags {
				names = append(names, f.Names()...)
			}
		}
		return fmt.Errorf("unknown flag --%s%s", name, didYouMean("--", config.Nearest(name, names)))
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return fmt.Errorf("flag --%s needs a value", name)
	}
	if rest, ok := strings.CutPrefix(text, "invalid boolean value "); ok {
		value, flag, _ := strings.Cut(strings.TrimSuffix(rest, ": parse error"), " for -")
		return fmt.Errorf("flag --%s takes true or false, got %s", flag, value)
	}
	if rest, ok := strings.CutPrefix(text, "invalid value "); ok {
		value, flag, _ := strings.Cut(rest, " for flag -")
		flag, why, _ := strings.Cut(flag, ": ")
		return fmt.Errorf("flag --%s takes %s, got %s", flag, why, value)
	}
	return err
}

// noArguments refuses words that a command does not take.
func noArguments(c *cli.Context) error {
	if c.NArg() > 0 {
		return fmt.Errorf("`%[1]s` takes no arguments, got %[2]q. Run `%[1]s --help` for the list of flags", commandName(c), c.Args().First())
	}
	return nil
}

// someArguments returns what refuses a command without arguments. what they are, and the
// command that lists them, are for the message.
func someArguments(what, list string) cli.BeforeFunc {
	return func(c *cli.Context) error {
		if c.NArg() > 0 {
			return nil
		}
		hint := ""
		if list != "" {
			hint = fmt.Sprintf(". Run `%s` for the list", list)
		}
		return fmt.Errorf("`%s` needs arguments: give %s%s", commandName(c), what, hint)
	}
}

// lifetime is the value of a flag that takes a duration, or 0 for no end.
type lifetime time.Duration

// Set implements cli.Generic.
func (l *lifetime) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return errors.New("a duration such as 30m, 24h or 720h, or 0 for no end")
	}
	*l = lifetime(d)
	return nil
}

// String implements cli.Generic.
func (l *lifetime) String() string { return time.Duration(*l).String() }
