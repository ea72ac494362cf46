// Command cniplugins makes packages from upstream's CNI plugins for
// cmd/helpers/cni. The plugins are programs, which cannot be imported. It copies
// their source, renames `package main` and `func main`, and writes the overlay
// with which `go build` finds the copies below cmd/helpers/cni/plugins. Each
// package also has Functions, so that the plugin kedge-cni can call it, and its
// package ipam is that of cmd/helpers/cni.
//
//	cniplugins cmd/helpers build/cni
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

const upstream = "github.com/containernetworking/plugins/plugins/"

var (
	//upstream:relies-on github.com/containernetworking/plugins/plugins/ipam/host-local/main.go main
	//upstream:relies-on github.com/containernetworking/plugins/plugins/main/bridge/bridge.go main
	//upstream:relies-on github.com/containernetworking/plugins/plugins/main/loopback/loopback.go main
	//upstream:relies-on github.com/containernetworking/plugins/plugins/meta/bandwidth/main.go main
	//upstream:relies-on github.com/containernetworking/plugins/plugins/meta/portmap/main.go main
	packageClause = regexp.MustCompile(`(?m)^package main$`)
	mainFunction  = regexp.MustCompile(`(?m)^func main\(\)`)
	ipamImport    = []byte(`"github.com/containernetworking/plugins/pkg/ipam"`)
	ownIPAM       = []byte(`"github.com/kedge-dev/kedge/cmd/helpers/cni/ipam"`)
)

// functions is a file of each package.
const functions = `package %s

import "github.com/containernetworking/cni/pkg/skel"

var Functions = skel.CNIFuncs{Add: cmdAdd, Check: cmdCheck, Del: cmdDel}
`

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cniplugins HELPERS-MODULE OUTPUT-FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "cniplugins:", err)
		os.Exit(1)
	}
}

func run(module, out string) error {
	module, err := filepath.Abs(module)
	if err != nil {
		return err
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	replace := map[string]string{}
	for _, plugin := range []string{"ipam/host-local", "main/bridge", "main/loopback", "meta/bandwidth", "meta/portmap"} {
		files, err := sources(module, upstream+plugin)
		if err != nil {
			return err
		}
		name := strings.ReplaceAll(path.Base(plugin), "-", "")
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			text = packageClause.ReplaceAll(text, []byte("package "+name))
			text = mainFunction.ReplaceAll(text, []byte("func Main()"))
			text = bytes.ReplaceAll(text, ipamImport, ownIPAM)
			// The copies are not named .go, because ./... of kedge would find
			// packages there.
			renamed := filepath.Join(out, name+"_"+filepath.Base(file)+".source")
			if err := os.WriteFile(renamed, text, 0o644); err != nil {
				return err
			}
			replace[filepath.Join(module, "cni", "plugins", name, filepath.Base(file))] = renamed
		}
		own := filepath.Join(out, name+"_functions.go.source")
		if err := os.WriteFile(own, fmt.Appendf(nil, functions, name), 0o644); err != nil {
			return err
		}
		replace[filepath.Join(module, "cni", "plugins", name, "functions.go")] = own
	}
	text, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "overlay.json"), append(text, '\n'), 0o644)
}

// sources returns the Go files of a package for the GOOS and GOARCH in the
// environment.
func sources(module, importPath string) ([]string, error) {
	list := exec.Command("go", "list", "-f", `{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}`, importPath)
	list.Dir, list.Stderr = module, os.Stderr
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", importPath, err)
	}
	return strings.Fields(string(text)), nil
}
