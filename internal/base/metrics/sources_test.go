package metrics

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// folders are where Kubernetes makes the metrics of each program, as in
// hack/tools/instrumentation/endpoint-mappings.yaml of k8s.io/kubernetes, which is in no
// module. What component-base makes is in all programs.
var folders = map[Part][]string{
	APIServer: {
		"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/pkg/controlplane", "k8s.io/kubernetes/pkg/registry",
		"k8s.io/kubernetes/pkg/serviceaccount", "k8s.io/kubernetes/plugin/pkg/admission", "k8s.io/kubernetes/plugin/pkg/auth",
		"k8s.io/apiserver", "k8s.io/apiextensions-apiserver", "k8s.io/kube-aggregator", "k8s.io/pod-security-admission",
		"k8s.io/component-base",
	},
	Controllers: {
		"k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/pkg/controller", "k8s.io/controller-manager",
		"k8s.io/endpointslice", "k8s.io/cloud-provider",
	},
	Scheduler: {"k8s.io/kubernetes/cmd/kube-scheduler", "k8s.io/kubernetes/pkg/scheduler", "k8s.io/kube-scheduler"},
	Proxy:     {"k8s.io/kubernetes/cmd/kube-proxy", "k8s.io/kubernetes/pkg/proxy"},
	Kubelet: {
		"k8s.io/kubernetes/cmd/kubelet", "k8s.io/kubernetes/pkg/kubelet", "k8s.io/kubernetes/pkg/credentialprovider",
		"k8s.io/kubernetes/pkg/volume",
	},
}

// sources reads the names of metrics from Kubernetes's sources.
type sources struct {
	t *testing.T
	// modules are the folders of the modules by their paths.
	modules map[string]string
	// constants are the strings by package and name that are known.
	constants map[string]map[string]ast.Expr
}

func newSources(t *testing.T) *sources {
	t.Helper()
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Path}} {{.Dir}}", "all").Output()
	if err != nil {
		t.Fatalf("list modules: %v", err)
	}
	s := &sources{t, map[string]string{}, map[string]map[string]ast.Expr{}}
	for line := range strings.Lines(string(output)) {
		if module, folder, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(module, "k8s.io/") && folder != "" {
			s.modules[module] = folder
		}
	}
	return s
}

// folder returns the folder of a package of Kubernetes, or nothing.
func (s *sources) folder(pkg string) string {
	for module := pkg; module != "."; module = path.Dir(module) {
		if folder, ok := s.modules[module]; ok {
			return filepath.Join(folder, strings.TrimPrefix(pkg, module))
		}
	}
	return ""
}

// metrics calls each with the names of the metrics that the packages below one make.
func (s *sources) metrics(below string, each func(name string)) {
	root := s.folder(below)
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		s.t.Errorf("there is no %s: correct the table folders", below)
		return
	}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte("StabilityLevel")) {
			return err
		}
		inside, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := path.Join(below, filepath.ToSlash(inside))
		ast.Inspect(parsed, func(node ast.Node) bool {
			if literal, ok := node.(*ast.CompositeLit); ok && isOptions(literal.Type) {
				if name := s.name(pkg, parsed, literal); name != "" {
					each(name)
				}
			} else if call, ok := node.(*ast.CallExpr); ok && isDescription(call.Fun) && len(call.Args) > 0 {
				if name, ok := s.text(pkg, parsed, call.Args[0]); ok {
					each(name)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		s.t.Errorf("read the metrics of %s: %v", below, err)
	}
}

// isOptions tells whether a type is one of the options of metrics in component-base/metrics.
func isOptions(typ ast.Expr) bool {
	name := ""
	switch typ := typ.(type) {
	case *ast.SelectorExpr:
		name = typ.Sel.Name
	case *ast.Ident:
		name = typ.Name
	}
	return slices.Contains([]string{"KubeOpts", "CounterOpts", "GaugeOpts", "HistogramOpts", "SummaryOpts", "TimingHistogramOpts"}, name)
}

// isDescription tells whether a function is NewDesc, whose first argument is a name.
func isDescription(function ast.Expr) bool {
	selector, ok := function.(*ast.SelectorExpr)
	return ok && selector.Sel.Name == "NewDesc"
}

// name returns the name of the metric with these options, or nothing if it is made when
// the program runs.
func (s *sources) name(pkg string, file *ast.File, options *ast.CompositeLit) string {
	parts := map[string]string{}
	for _, element := range options.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := pair.Key.(*ast.Ident)
		if !ok || !slices.Contains([]string{"Namespace", "Subsystem", "Name"}, key.Name) {
			continue
		}
		text, ok := s.text(pkg, file, pair.Value)
		if !ok {
			return ""
		}
		parts[key.Name] = text
	}
	if parts["Name"] == "" {
		return ""
	}
	return strings.Join(slices.DeleteFunc([]string{parts["Namespace"], parts["Subsystem"], parts["Name"]}, func(part string) bool { return part == "" }), "_")
}

// text returns the value of an expression that is a string.
func (s *sources) text(pkg string, file *ast.File, value ast.Expr) (string, bool) {
	switch value := value.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(value.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		left, ok := s.text(pkg, file, value.X)
		right, also := s.text(pkg, file, value.Y)
		return left + right, ok && also
	case *ast.Ident:
		if constant, ok := s.constantsOf(pkg)[value.Name]; ok {
			return s.text(pkg, file, constant)
		}
	case *ast.SelectorExpr:
		of, ok := value.X.(*ast.Ident)
		if !ok {
			return "", false
		}
		for _, imported := range file.Imports {
			target, _ := strconv.Unquote(imported.Path.Value)
			name := path.Base(target)
			if imported.Name != nil {
				name = imported.Name.Name
			}
			if name == of.Name {
				if constant, ok := s.constantsOf(target)[value.Sel.Name]; ok {
					return s.text(target, file, constant)
				}
			}
		}
	case *ast.CallExpr:
		// prometheus.BuildFQName joins what are fields otherwise.
		function, ok := value.Fun.(*ast.SelectorExpr)
		if !ok || function.Sel.Name != "BuildFQName" {
			return "", false
		}
		var parts []string
		for _, argument := range value.Args {
			part, ok := s.text(pkg, file, argument)
			if !ok {
				return "", false
			}
			if part != "" {
				parts = append(parts, part)
			}
		}
		return strings.Join(parts, "_"), true
	}
	return "", false
}

// constantsOf returns the constants and variables of a package.
func (s *sources) constantsOf(pkg string) map[string]ast.Expr {
	if known, ok := s.constants[pkg]; ok {
		return known
	}
	found := map[string]ast.Expr{}
	s.constants[pkg] = found
	folder := s.folder(pkg)
	if folder == "" {
		return found
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				if values, ok := spec.(*ast.ValueSpec); ok && len(values.Names) == len(values.Values) {
					for i, name := range values.Names {
						found[name.Name] = values.Values[i]
					}
				}
			}
		}
	}
	return found
}
