package cli

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

// The scripts ask kedge itself for the words, by the flag that urfave/cli
// answers: https://cli.urfave.org/v2/examples/bash-completions/
const (
	bashCompletion = `_kedge() {
  local words=("${COMP_WORDS[@]:0:$COMP_CWORD}")
  case "${COMP_WORDS[1]}" in
  kubectl | crictl | ctr) return ;;
  esac
  COMPREPLY=($(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o bashdefault -o default -F _kedge kedge
`
	zshCompletion = `#compdef kedge
_kedge() {
  local -a words_of_kedge
  words_of_kedge=("${(@f)$(${words[@]:0:#words[@]-1} --generate-bash-completion 2>/dev/null)}")
  _describe 'kedge' words_of_kedge
}
compdef _kedge kedge
`
)

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: "For this shell:       source <(kedge completion bash)\n" +
			"For every bash after: kedge completion bash >/etc/bash_completion.d/kedge\n" +
			"kubectl has its own:  kedge kubectl completion bash",
		Action: func(c *cli.Context) (err error) {
			var script string
			switch shell := c.Args().First(); shell {
			case "bash":
				script = bashCompletion
			case "zsh":
				script = zshCompletion
			case "fish":
				script, err = c.App.ToFishCompletion()
			default:
				err = fmt.Errorf("unknown shell %q: use bash, zsh or fish", shell)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.App.Writer, script)
			return err
		},
	}
}
