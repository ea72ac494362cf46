// Command sbom prints the parts of a kedge as CycloneDX 1.5 in JSON: the Go
// modules of the executable and of the helpers in it, as their linker recorded
// them, and the Debian packages that other helpers come from.
//
//	sbom NAME EXECUTABLE build/ARCHITECTURE
package main

import (
	"bufio"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: sbom NAME EXECUTABLE FOLDER-OF-HELPERS")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// bom and component are the parts of CycloneDX that kedge uses:
// https://cyclonedx.org/docs/1.5/json/
type bom struct {
	BOMFormat   string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	BOMRef  string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
}

// goHelpers are the helpers that are written in Go.
var goHelpers = []string{"runc", "containerd-shim-runc-v2", "crictl", "cni"}

func run(name, executable, helpers string) error {
	// The libraries are kept by purl, because helpers have modules in common.
	parts := map[string]component{}
	programs := []string{executable}
	for _, helper := range goHelpers {
		programs = append(programs, filepath.Join(helpers, helper))
	}
	for _, program := range programs {
		if err := addModules(parts, program); err != nil {
			return err
		}
	}
	if err := addPackages(parts, filepath.Join(helpers, "debian", "packages")); err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(bom{
		BOMFormat: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata:   metadata{component{Type: "application", BOMRef: name, Name: name}},
		Components: slices.SortedFunc(maps.Values(parts), func(a, b component) int { return cmp.Compare(a.PURL, b.PURL) }),
	})
}

// addModules adds the modules of a Go program, and Go's standard library.
func addModules(parts map[string]component, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w", program, err)
	}
	add(parts, "golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go"), "")
	modules := info.Deps
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		modules = append(modules, &info.Main) // the helper's own module
	}
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		add(parts, "golang", module.Path, module.Version, "")
	}
	return nil
}

// addPackages adds the Debian packages in list, which has lines NAME VERSION
// ARCHITECTURE.
func addPackages(parts map[string]component, list string) error {
	file, err := os.Open(list)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return fmt.Errorf("%s has the line %q, want NAME VERSION ARCHITECTURE", list, lines.Text())
		}
		add(parts, "deb/debian", fields[0], fields[1], "?arch="+fields[2])
	}
	return lines.Err()
}

// add adds a library under its purl: https://github.com/package-url/purl-spec
func add(parts map[string]component, kind, name, version, qualifiers string) {
	purl := "pkg:" + kind + "/" + name + "@" + strings.NewReplacer("+", "%2B", ":", "%3A").Replace(version) + qualifiers
	parts[purl] = component{Type: "library", BOMRef: purl, Name: name, Version: version, PURL: purl}
}
