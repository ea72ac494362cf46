package upstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// std is the path of the module of Go's standard library.
const std = "std"

// module is one at a version.
type module struct {
	path, version string
	// dir is where its source is, "" as long as it is not known.
	dir string
}

func (m module) String() string { return m.path + "@" + m.version }

// modules are those that a tree of source uses, by the folders of its go.mod files.
type modules map[string][]module

// nested are the folders of the modules in kedge's tree, with the main one.
var nested = []string{".", "cmd/helpers", "tests/conformance/suite"}

// outsider is a module that no go.mod file has: kedge uses none of its packages, but has
// code that follows it or relies on it.
type outsider struct {
	// version is the one that kedge's code was last compared with. To compare the code
	// with a newer one, write it here and run `make upstream`.
	path, version string
	// of is a module of go.mod that belongs to the same releases, or "". Both must have
	// the same minor version.
	of string
}

var outsiders = []outsider{
	{path: "github.com/k3s-io/helm-controller", version: "v0.17.9"},
	{path: "github.com/kubernetes-csi/external-provisioner/v6", version: "v6.4.0"},
	{path: "github.com/kubernetes-csi/external-resizer/v2", version: "v2.3.0"},
	{path: "go.etcd.io/etcd/etcdutl/v3", version: "v3.7.3", of: "go.etcd.io/etcd/server/v3"},
	{path: "sigs.k8s.io/sig-storage-lib-external-provisioner/v13", version: "v13.1.0"},
}

// add adds outsiders to the modules of the main go.mod.
func (m modules) add(outsiders []outsider) error {
	for _, o := range outsiders {
		if version := m.version(o.path); version != "" {
			return fmt.Errorf("a go.mod has %s %s: remove the module from outsiders in internal/upstream/modules_test.go", o.path, version)
		}
		if version := m.version(o.of); minor(version) != minor(o.version) && o.of != "" {
			return fmt.Errorf("go.mod has %s %s, and outsiders in internal/upstream/modules_test.go has %s %s: write a version there that begins with %s",
				o.of, version, o.path, o.version, minor(version))
		}
		m["."] = append(m["."], module{path: o.path, version: o.version})
	}
	return nil
}

// version returns the version of a module, or "" if no go.mod has it.
func (m modules) version(path string) string {
	for _, folder := range nested {
		for _, each := range m[folder] {
			if each.path == path {
				return each.version
			}
		}
	}
	return ""
}

// minor returns v1.2 of v1.2.3.
func minor(version string) string { return version[:max(0, strings.LastIndex(version, "."))] }

// usedModules reads the go.mod files of a tree, and adds the outsiders.
func usedModules(root string) (modules, error) {
	used := modules{}
	for _, folder := range nested {
		var file struct {
			Go      string
			Require []struct{ Path, Version string }
			Replace []struct {
				Old, New struct{ Path, Version string }
			}
		}
		// go test keeps a result as long as the files stay the same that the test itself
		// opens, of which this has to be one.
		if _, err := os.ReadFile(in(root, folder+"/go.mod")); err != nil {
			return nil, err
		}
		out, err := run(in(root, folder), "go", "mod", "edit", "-json")
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(out, &file); err != nil {
			return nil, fmt.Errorf("read go.mod of %s: %w", folder, err)
		}
		used[folder] = append(used[folder], module{path: std, version: "go" + file.Go})
		for _, r := range file.Require {
			m := module{path: r.Path, version: r.Version}
			for _, replaced := range file.Replace {
				if replaced.Old.Path == m.path {
					// House rule: never by a fork.
					m.version = replaced.New.Version
				}
			}
			used[folder] = append(used[folder], m)
		}
	}
	return used, used.add(outsiders)
}

// find returns the module that a directive names, and the file in it. What stands below
// a folder with a go.mod file means that one's modules, or else any.
func (m modules) find(d directive) (module, string, error) {
	folders := slices.Clone(nested)
	slices.SortStableFunc(folders, func(a, b string) int { return near(d.here, b) - near(d.here, a) })
	for _, folder := range folders {
		var found module
		for _, each := range m[folder] {
			if strings.HasPrefix(d.path, each.path+"/") && len(each.path) > len(found.path) {
				found = each
			}
		}
		if found.path != "" {
			return found, strings.TrimPrefix(d.path, found.path+"/"), nil
		}
	}
	return module{}, "", fmt.Errorf("no go.mod has the module of %s: if kedge uses no package of it, add it to outsiders in internal/upstream/modules_test.go", d.path)
}

// near is higher for a folder that a file is below.
func near(file, folder string) int {
	if strings.HasPrefix(path.Clean(file), folder+"/") {
		return len(folder)
	}
	return 0
}

// fetch returns the modules with the folders of their sources, out of the module cache,
// or downloaded into it. root has a go.mod file.
func fetch(root string, wanted []module) (map[string]module, error) {
	arguments := []string{"mod", "download", "-json"}
	found := map[string]module{}
	for _, m := range wanted {
		if m.path != std {
			arguments = append(arguments, m.String())
			continue
		}
		dir, err := fetchStd(root, m.version)
		if err != nil {
			return nil, err
		}
		found[m.String()] = module{m.path, m.version, dir}
	}
	if len(arguments) == 3 {
		return found, nil
	}
	out, err := run(root, "go", arguments...)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var got struct{ Path, Version, Dir, Error string }
		if more := decoder.Decode(&got); errors.Is(more, io.EOF) {
			return found, err
		} else if more != nil {
			return nil, errors.Join(err, fmt.Errorf("read what go mod download says: %w", more))
		}
		if got.Error != "" {
			return nil, fmt.Errorf("download %[1]s@%[2]s to compare with its source: %[3]s. The module proxy (`go env GOPROXY`) must be reachable, or the module must be "+
				"in the module cache: run `go mod download %[1]s@%[2]s` while there is a network", got.Path, got.Version, got.Error)
		}
		m := module{got.Path, got.Version, got.Dir}
		found[m.String()] = m
	}
}

// fetchStd returns the folder with the standard library of a version of Go: of the one
// that runs, or of another that is downloaded.
func fetchStd(root, version string) (string, error) {
	out, err := run(root, "go", "env", "GOVERSION", "GOROOT", "GOHOSTOS", "GOHOSTARCH")
	if err != nil {
		return "", err
	}
	env := strings.Split(string(out), "\n")
	if env[0] == version {
		return filepath.Join(env[1], "src"), nil
	}
	toolchain := module{path: "golang.org/toolchain", version: "v0.0.1-" + version + "." + env[2] + "-" + env[3]}
	got, err := fetch(root, []module{toolchain})
	return filepath.Join(got[toolchain.String()].dir, "src"), err
}

// run returns what a command prints.
func run(folder, name string, arguments ...string) ([]byte, error) {
	command := exec.Command(name, arguments...)
	command.Dir = folder
	var faults bytes.Buffer
	command.Stderr = &faults
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("run %s %s: %w: %s", name, strings.Join(arguments[:min(2, len(arguments))], " "), err, bytes.TrimSpace(faults.Bytes()))
	}
	return out, err
}
