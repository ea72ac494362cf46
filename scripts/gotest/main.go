// Command gotest runs `go test` with its own arguments and prints the output of `go test`.
// At the end it lists the skipped tests with their reasons. Its exit status is that of
// `go test`.
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

// show prints events as go test would: if verbose with the output of all tests, and
// otherwise with that of failed tests only. It returns a line for each skipped test.
func show(events io.Reader, out io.Writer, verbose bool) (skips []string, err error) {
	type test struct{ pkg, name string }
	// printed has the output of each test. The rest of a package's output has an empty name.
	printed := map[test][]string{}
	lines := bufio.NewReader(events)
	for {
		line, more := lines.ReadString('\n')
		var e event
		switch {
		case line == "":
		case json.Unmarshal([]byte(line), &e) != nil:
			// This line does not belong to a test. A build may have printed it.
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

// reason returns what a skipped test printed, without the lines of the testing package.
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
