package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	flagsPage  = "../../../docs/configuration.md"
	flagsBegin = "<!-- Flags, written by go test ./internal/base/config -run TestFlagsPage -update -->\n"
	flagsEnd   = "<!-- End of flags -->\n"
)

var update = flag.Bool("update", false, "write the tables of flags into docs/configuration.md")

// TestFlagsPage compares the tables of flags in docs/configuration.md with the tags of
// Config. With -update it writes them.
func TestFlagsPage(t *testing.T) {
	content, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	before, rest, found := strings.Cut(text, flagsBegin)
	_, after, foundEnd := strings.Cut(rest, flagsEnd)
	if !found || !foundEnd {
		t.Fatalf("%s has no lines %q and %q", flagsPage, flagsBegin, flagsEnd)
	}
	want := before + flagsBegin + "\n" + flagTables() + "\n" + flagsEnd + after
	switch {
	case text == want:
	case *update:
		if err := os.WriteFile(flagsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the tables of flags in %s are out of date: run go test ./internal/base/config -run TestFlagsPage -update", flagsPage)
	}
}

// flagTables are the flags of servers and agents, and those of servers only.
func flagTables() string {
	var both, servers bytes.Buffer
	for _, f := range Default().Fields() {
		table := &both
		if f.Role == ServerRole {
			table = &servers
		}
		value := ""
		if text := f.String(); text != "" && text != "false" {
			value = "`" + text + "`"
		}
		fmt.Fprintf(table, "| `--%s` | %s | %s |\n", f.Key, value, strings.ReplaceAll(f.Usage, "|", "\\|"))
	}
	const head = "| flag | default | what it is |\n| --- | --- | --- |\n"
	return "Flags of `kedge server` and `kedge agent`:\n\n" + head + both.String() + "\nFlags of `kedge server` only:\n\n" + head + servers.String()
}
