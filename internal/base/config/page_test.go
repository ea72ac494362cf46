package config

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

// k3sVersion is the version of k3s that the tables of its names follow. testdata says where
// each name is documented.
const k3sVersion = "v1.36"

var update = flag.Bool("update", false, "write the tables into the pages of docs")

// TestFlagsPage compares the tables of flags in docs/configuration.md with the tags of
// Config, and the tables of k3s's names in docs/from-k3s.md with the verdicts on them. With
// -update it writes them.
func TestFlagsPage(t *testing.T) {
	for page, tables := range map[string]string{"configuration.md": flagTables(), "from-k3s.md": k3sTables()} {
		testutil.WantPart(t, "../../../docs/"+page, "<!-- Flags, written by go test ./internal/base/config -run TestFlagsPage -update -->", "<!-- End of flags -->", *update,
			func(string) string { return tables })
	}
}

// k3sTables are the verdicts on k3s's keys, on their values, and on the variables of its
// install.sh.
func k3sTables() string {
	var text bytes.Buffer
	table := func(title, head string) {
		fmt.Fprintf(&text, "%s\n\n| %s | verdict | in kedge |\n| --- | --- | --- |\n", title, head)
	}
	row := func(name string, verdict Verdict, to, says string) {
		if to != "" {
			to = "`" + to + "`. "
		}
		says = strings.ReplaceAll(says, "docs/", "")
		fmt.Fprintf(&text, "| `%s` | %s | %s |\n", name, verdict, strings.TrimSpace(to+says))
	}
	fmt.Fprintf(&text, "The tables follow k3s %s.\n\n", k3sVersion)
	table("Keys, which are also flags:", "k3s")
	for _, k := range k3sKeys {
		row(k.Key, k.Verdict, k.To, k.Says)
	}
	table("\nValues with a verdict of their own:", "k3s")
	for _, v := range k3sValues {
		if v.Says != "" || v.To != "" {
			row(v.Key+": "+v.Value, v.Verdict, v.To, v.Says)
		}
	}
	table("\nVariables that are no keys:", "k3s")
	for _, name := range slices.Sorted(maps.Keys(k3sNoKeys)) {
		row(name, Needless, "", k3sNoKeys[name])
	}
	table("\nVariables of `install.sh`:", "k3s")
	for _, k := range k3sInstallVariables {
		to := ""
		if k.Verdict == Same {
			to = "INSTALL_KEDGE_" + k.Key
		}
		row("INSTALL_K3S_"+k.Key, k.Verdict, to, k.Says)
	}
	return text.String()
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
