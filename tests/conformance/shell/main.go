// Command shell is /bin/sh of the conformance tests' busybox. It becomes
// busybox's own, whose messages some tests compare; but Debian's build of that
// drops environment variables whose names no shell could use, such as "data-1",
// which other tests print. With such variables it becomes bash instead.
package main

import (
	"fmt"
	"os"
	"regexp"
	"syscall"
)

var usable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

func main() {
	program := "/bin/busybox"
	for _, variable := range os.Environ() {
		if !usable.MatchString(variable) {
			program = "/bin/bash-static"
			break
		}
	}
	err := syscall.Exec(program, os.Args, os.Environ())
	fmt.Fprintln(os.Stderr, program, err)
	os.Exit(127)
}
