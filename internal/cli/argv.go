package cli

import (
	"os"
	"strings"
	"unsafe"

	"github.com/kedge-dev/kedge/internal/base/config"
)

// hidden replaces each byte of a secret in this process's command line.
const hidden = '*'

// HideSecrets overwrites the values of secret flags in this process's command line,
// which every user of the host can read in /proc/PID/cmdline and ps. os.Args is a copy
// afterwards, and keeps the values. Call it once, from main, before anything else: it
// needs os.Args as the runtime made it.
func HideSecrets() {
	shown := os.Args
	os.Args = make([]string, len(shown))
	for i, word := range shown {
		os.Args[i] = strings.Clone(word)
	}
	for _, value := range secretValues(shown) {
		// The runtime's strings are the kernel's memory itself (runtime/runtime1.go,
		// goargs), which is this process's to change; those that remain are copies.
		//upstream:relies-on std/runtime/runtime1.go goargs
		memory := unsafe.Slice(unsafe.StringData(value), len(value))
		for i := range memory {
			memory[i] = hidden
		}
	}
}

// secretValues returns the parts of a command line that are the values of secret
// flags. They share the memory of args.
func secretValues(args []string) []string {
	secret := map[string]bool{}
	for _, name := range config.SecretFlags() {
		// Letters are flags of these two commands only.
		secret[name] = len(name) > 1 || len(args) > 1 && (args[1] == "server" || args[1] == "agent")
	}
	var values []string
	for i, word := range args {
		flag, value, joined := strings.Cut(word, "=")
		name := strings.TrimLeft(flag, "-")
		switch {
		case name == flag || !secret[name]:
		case joined:
			values = append(values, value)
		case i+1 < len(args):
			values = append(values, args[i+1])
		}
	}
	return values
}
