package kubelet

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	internalapi "k8s.io/cri-api/pkg/apis"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/util/oom"
)

// fakeRuntime and the fake clients are recognised by their errors.
type (
	fakeRuntime     struct{ Runtime }
	fakeClient      struct{ internalapi.RuntimeService }
	fakeImageClient struct {
		internalapi.ImageManagerService
	}
)

var errInProcess, errSocket = errors.New("in process"), errors.New("socket")

func (fakeRuntime) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return nil, errInProcess
}

func (fakeClient) ListContainers(context.Context, *cri.ContainerFilter) ([]*cri.Container, error) {
	return nil, errSocket
}

func (fakeClient) StartContainer(context.Context, string) error { return errSocket }

func (fakeRuntime) ListImages(context.Context, *cri.ImageFilter) ([]*cri.Image, error) {
	return nil, errInProcess
}

func (fakeImageClient) ListImages(context.Context, *cri.ImageFilter) ([]*cri.Image, error) {
	return nil, errSocket
}

func (fakeImageClient) RemoveImage(context.Context, *cri.ImageSpec) error { return errSocket }

func TestUseRuntime(t *testing.T) {
	for name, test := range map[string]struct {
		runtime Runtime
		want    error
	}{
		"containerd in this process": {fakeRuntime{}, errInProcess},
		"a runtime elsewhere":        {nil, errSocket},
	} {
		t.Run(name, func(t *testing.T) {
			adjusted := 0
			dependencies := &kubelet.Dependencies{OOMAdjuster: &oom.OOMAdjuster{
				ApplyOOMScoreAdj: func(int, int) error { adjusted++; return nil },
			}}
			(&Kubelet{cfg: Config{Runtime: test.runtime}}).useRuntime(t.Context(), dependencies)
			// As run() does: TestOrderOfCalls.
			dependencies.RemoteRuntimeService, dependencies.RemoteImageService = fakeClient{}, fakeImageClient{}
			for range 2 {
				if err := dependencies.OOMAdjuster.ApplyOOMScoreAdj(0, -999); err != nil {
					t.Fatal(err)
				}
			}
			if adjusted != 2 {
				t.Errorf("OOM score was adjusted %d times, want 2", adjusted)
			}
			service := dependencies.RemoteRuntimeService
			if _, err := service.ListContainers(t.Context(), nil); !errors.Is(err, test.want) {
				t.Errorf("containers are listed by %v, want %v", err, test.want)
			}
			if err := service.StartContainer(t.Context(), "c"); !errors.Is(err, errSocket) {
				t.Errorf("containers are started by %v, want %v", err, errSocket)
			}
			images := dependencies.RemoteImageService
			if _, err := images.ListImages(t.Context(), nil); !errors.Is(err, test.want) {
				t.Errorf("images are listed by %v, want %v", err, test.want)
			}
			if err := images.RemoveImage(t.Context(), nil); !errors.Is(err, errSocket) {
				t.Errorf("images are removed by %v, want %v", err, errSocket)
			}
		})
	}
}

// TestOrderOfCalls reads upstream's run: useRuntime works only if the kubelet's
// services and its cAdvisor (for which NewImageFsInfoProvider stands) are made before the one OOM
// score is adjusted, and used after it.
func TestOrderOfCalls(t *testing.T) {
	const pkg = "k8s.io/kubernetes/cmd/kubelet/app"
	folder, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatalf("find %s: %v", pkg, err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(folder)), "server.go"), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	watched := []string{"PreInitRuntimeService", "NewImageFsInfoProvider", "ApplyOOMScoreAdj", "RunKubelet"}
	var calls []string
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); !ok || f.Name.Name != "run" || f.Recv != nil {
			continue
		}
		ast.Inspect(decl, func(node ast.Node) bool {
			name := ""
			if call, ok := node.(*ast.CallExpr); ok {
				switch called := call.Fun.(type) {
				case *ast.Ident:
					name = called.Name
				case *ast.SelectorExpr:
					name = called.Sel.Name
				}
			}
			if slices.Contains(watched, name) {
				calls = append(calls, name)
			}
			return true
		})
	}
	if !slices.Equal(calls, watched) {
		t.Errorf("upstream's run calls %q, want %q: useRuntime must take another moment", calls, watched)
	}
}
