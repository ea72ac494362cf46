// Command gotest runs `go test` with the arguments it is given, prints what that
// prints, and at the end the tests that were skipped, with their reasons. It exits as
// `go test` does.
//
//	gotest -timeout 40m ./...
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	arguments := os.Args[1:]
	command := exec.Command("go", append([]string{"test", "-json"}, arguments...)...)
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
	skips, faults := show(stdout, os.Stdout, slices.Contains(arguments, "-v"))
	for _, line := range skips {
		fmt.Println(line)
	}
	err = errors.Join(faults, command.Wait())
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

// event is a line of `go test -json`, see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
}

// show prints events as go test would: with all of their output if verbose, or else
// with that of tests that fail. It returns a line for each test that was skipped.
func show(events io.Reader, out io.Writer, verbose bool) (skips []string, err error) {
	type test struct{ pkg, name string }
	// What each test has printed, and what a package has besides under no name.
	printed := map[test][]string{}
	lines := bufio.NewReader(events)
	for {
		line, more := lines.ReadString('\n')
		var e event
		switch {
		case line == "":
		case json.Unmarshal([]byte(line), &e) != nil:
			// What is not of a test, such as what a build prints.
			fmt.Fprint(out, line)
		default:
			this := test{e.Package, e.Test}
			if e.Action == "output" {
				printed[this] = append(printed[this], e.Output)
			}
			switch {
			case e.Action == "build-output", e.Action == "output" && verbose:
				fmt.Fprint(out, e.Output)
			case e.Action == "fail" && !verbose:
				fmt.Fprint(out, strings.Join(printed[this], ""))
			case e.Test == "" && (e.Action == "pass" || e.Action == "skip") && !verbose:
				fmt.Fprint(out, strings.Join(printed[this][max(0, len(printed[this])-1):], "")) // ok and the time
			case e.Test != "" && e.Action == "skip":
				skips = append(skips, fmt.Sprintf("SKIP %s %s: %s", e.Package, e.Test, reason(printed[this])))
			}
			if e.Action == "fail" || e.Action == "pass" || e.Action == "skip" {
				delete(printed, this)
			}
		}
		if more != nil {
			if more == io.EOF {
				more = nil
			}
			return skips, more
		}
	}
}

// reason returns what a skipped test has said, without what the testing package says.
func reason(printed []string) string {
	var said []string
	for _, line := range printed {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
