// Command broken tells a version like a kedge, and does nothing else. The linker sets the variables.
package main

import (
	"fmt"
	"os"
)

var (
	// version is what it tells.
	version string
	// waits is not empty if it waits instead of ending.
	waits string
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("kedge", version)
		return
	}
	if waits != "" {
		select {}
	}
	fmt.Fprintln(os.Stderr, "kedge: this one is broken")
	os.Exit(1)
}
