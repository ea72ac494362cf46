package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"
	"sigs.k8s.io/yaml"
)

// outputFlag is the format of what a command prints, or the file it writes.
const outputFlag = "output"

// formatFlag makes the flag of a command that printAs prints for.
func formatFlag() cli.Flag {
	return &cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FORMAT` of the output: table, json or yaml", Value: "table"}
}

// printAs prints a value in the format that the user has chosen; table prints it
// for people.
func printAs(w io.Writer, format string, value any, table func(io.Writer) error) error {
	switch format {
	case "table":
		return table(w)
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("print as YAML: %w", err)
		}
		_, err = w.Write(text)
		return err
	}
	return fmt.Errorf("unknown output format %q: use table, json or yaml", format)
}
