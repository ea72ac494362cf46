package internal

import (
	"flag"
	"fmt"
	"go/doc"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil"
)

var update = flag.Bool("update", false, "write the table of packages into README.md")

// TestPackagesPage wants README.md to have a row for each package, with the first
// sentence of the package's doc. The last column of the table is written by hand: -update
// keeps what a row has there.
func TestPackagesPage(t *testing.T) {
	testutil.WantPart(t, "README.md", "<!-- Packages, written by go test ./internal -run TestPackagesPage -update -->", "<!-- End of packages -->", *update,
		func(table string) string { return packageTable(t, table) })
}

// packageTable returns the table of all packages. Its last column is that of the table
// before.
func packageTable(t *testing.T, before string) string {
	t.Helper()
	changes := map[string]string{}
	for line := range strings.Lines(before) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) == 5 {
			changes[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[3])
		}
	}
	var table strings.Builder
	table.WriteString("| package | what it does, or is | change it to |\n| --- | --- | --- |\n")
	all := packages(t)
	for _, pkg := range slices.Sorted(maps.Keys(all)) {
		sentence := ""
		for _, file := range all[pkg] {
			if file.Doc != nil {
				sentence = new(doc.Package).Synopsis(file.Doc.Text())
			}
		}
		short := strings.TrimSuffix(strings.TrimPrefix(sentence, "Package "+pkg[strings.LastIndex(pkg, "/")+1:]+" "), ".")
		if short == "" || len(short) > 260 || strings.Contains(short, "|") {
			t.Errorf("%s: the table of packages cannot have the first sentence of its doc: %q", pkg, sentence)
		}
		name := "`" + pkg + "`"
		row := fmt.Sprintf("| %s | %s | %s |\n", name, strings.TrimPrefix(short, "is "), changes[name])
		table.WriteString(strings.ReplaceAll(row, "|  |", "| |"))
	}
	return table.String()
}
