package keeper

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
)

// load writes texts into files, and loads them as a node does.
func load(t *testing.T, texts ...string) (*config.Config, config.Sources) {
	t.Helper()
	var files []string
	for i, text := range texts {
		files = append(files, filepath.Join(t.TempDir(), fmt.Sprint(i, ".yaml")))
		if err := os.WriteFile(files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, sources, err := config.LoadFiles(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return cfg, sources
}

// TestListsAreMerged wants a node to have the user's arguments of the kubelet beside the keeper's.
func TestListsAreMerged(t *testing.T) {
	c := clusters.Cluster{Name: "x", Nodes: 1, Servers: 1}
	setup := layout{root: "/run/x"}.node(c, 1)
	for user, want := range map[string][]string{
		"":                                   {"cgroup-root=/kedge-cluster-x/server-1"},
		"kubelet-arg: [max-pods=250, v=2]\n": {"max-pods=250", "v=2", "cgroup-root=/kedge-cluster-x/server-1"},
		"kubelet-arg: max-pods=250\n":        {"max-pods=250", "cgroup-root=/kedge-cluster-x/server-1"},
	} {
		if cfg, _ := load(t, user, setup.Files["/etc/kedge/config.yaml.d/zz-throwaway.yaml"]); !slices.Equal(cfg.Node.KubeletArgs, want) {
			t.Errorf("%q: the node has %q, want %q", user, cfg.Node.KubeletArgs, want)
		}
	}
}

// TestNoVolumesWithoutRoot wants only nodes of an ordinary user to have no local volumes.
func TestNoVolumesWithoutRoot(t *testing.T) {
	c := clusters.Cluster{Name: "x", Nodes: 1, Servers: 1}
	for _, rootless := range []bool{false, true} {
		cfg, _ := load(t, settings(c, 1, rootless))
		if cfg.Cluster.Has(config.LocalStorage) == rootless {
			t.Errorf("without root: %t; local volumes: %t", rootless, cfg.Cluster.Has(config.LocalStorage))
		}
	}
}

// TestCheckConfig wants each setting that the keeper owns to be refused with its line, and others not.
func TestCheckConfig(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokens, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	values := map[string]string{
		"cluster-init": "true", "cluster-reset": "true", "with-node-id": "true", "https-listen-port": "7443",
		"token-file": tokens, "agent-token-file": tokens,
	}
	for key := range owned {
		// Some need others, about which CheckConfig does not ask.
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte("debug: true\n"+key+": "+cmp.Or(values[key], "x")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, sources, _ := config.LoadFiles([]string{file}, nil)
		if want, err := file+":2: "+key+" cannot be set", CheckConfig(cfg, sources); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", key, err, want)
		}
	}
	cfg, sources := load(t, "kubelet-arg: [max-pods=250]\nnode-label: [a=b]\ncluster-cidr: 10.9.0.0/16\ndisable: gateway\n")
	if err := CheckConfig(cfg, sources); err != nil {
		t.Errorf("settings that nodes can have: %v", err)
	}
	cfg, sources = load(t, "kubelet-arg: [max-pods=250, cgroup-root=/mine]\n")
	if err := CheckConfig(cfg, sources); err == nil || !strings.Contains(err.Error(), "kubelet-arg cgroup-root") {
		t.Errorf("the cgroup of the node: %v", err)
	}
}

// TestFlagsAreOwned wants each flag with which the keeper starts kedge on a node to be refused in the user's settings:
// it would replace what is there without a word.
func TestFlagsAreOwned(t *testing.T) {
	source, err := os.ReadFile("start.go")
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`"--([a-z-]+)`).FindAllSubmatch(source, -1)
	if len(flags) < 4 {
		t.Fatalf("start.go has only the flags %q", flags)
	}
	for _, flag := range flags {
		if owned[string(flag[1])] == "" {
			t.Errorf("the keeper sets %s, which is not in owned", flag[1])
		}
	}
}
