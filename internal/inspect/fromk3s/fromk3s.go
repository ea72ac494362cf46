// Package fromk3s reads an installation of k3s and says what of it works with kedge as it
// is, what changes and what cannot work. It changes nothing. The cli package calls it for
// `kedge check-config --from`.
package fromk3s

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/k3shost"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
)

// Result says what becomes of a part of an installation.
type Result string

// The results, from the best to the worst.
const (
	Works   Result = "works"
	Changes Result = "changes"
	Cannot  Result = "cannot"
)

// Finding is what was found about one part of an installation.
type Finding struct {
	Result Result `json:"result"`
	// Source is a path in the installation, with a line if that is known, or "cluster".
	Source string `json:"source"`
	// Name is a key, a variable, a flag or an object.
	Name string `json:"name"`
	// Says has sentences: what changes, or what to do. It is empty for most of what works.
	Says string `json:"says,omitempty"`
}

// Worst returns the worst result of findings.
func Worst(findings []Finding) Result {
	worst := Works
	for _, f := range findings {
		if f.Result == Cannot || f.Result == Changes && worst == Works {
			worst = f.Result
		}
	}
	return worst
}

// manifestFolder is in k3s's folder of data.
const manifestFolder = "server/manifests"

// Look reads the installation of k3s in folder: the root of a host or of a copy of one. It
// may also be one of k3s's own two folders in it. If cluster is not nil, Look also reads
// the objects of the cluster that k3s serves. It fails if there is no k3s in folder.
func Look(ctx context.Context, folder string, cluster *rest.Config) ([]Finding, error) {
	root := filepath.Clean(folder)
	for _, inside := range []string{k3shost.ConfigFolder, k3shost.DataFolder} {
		if above, ok := strings.CutSuffix(root, inside); ok {
			root = filepath.Clean("/" + above)
			if !filepath.IsAbs(folder) {
				root = filepath.Clean("./" + above)
			}
		}
	}
	i := &installation{root: root}
	if !i.exists(k3shost.ConfigFolder) && !i.exists(k3shost.DataFolder) && cluster == nil {
		return nil, fmt.Errorf("no k3s in %s: it has neither %s nor %s. Give the root of the host, which is / for this one, or of a copy of these folders", folder, k3shost.ConfigFolder, k3shost.DataFolder)
	}
	faults := []error{i.configuration(), i.registries(), i.manifests(), i.files()}
	i.datastore()
	if cluster != nil {
		faults = append(faults, i.cluster(ctx, cluster))
	}
	return i.found, errors.Join(faults...)
}

// installation is one of k3s, whose files are below root.
type installation struct {
	root  string
	found []Finding
	// data is k3s's data-dir, below root.
	data string
	// noGateway says that the configuration disables Traefik, and with it kedge's gateway.
	noGateway bool
}

func (i *installation) add(result Result, source, name, says string) {
	i.found = append(i.found, Finding{result, source, name, says})
}

func (i *installation) path(path string) string { return filepath.Join(i.root, path) }

func (i *installation) exists(path string) bool {
	_, err := os.Stat(i.path(path))
	return err == nil
}

// shown returns a source of the configuration without the root.
func (i *installation) shown(source string) string {
	if i.root == "/" || i.root == "." {
		return source
	}
	return strings.ReplaceAll(source, i.root+"/", "/")
}

// configuration judges the configuration file, its drop-ins, and the flags and the
// environment of the service.
func (i *installation) configuration() error {
	settings, err := k3shost.Read(i.root)
	if err != nil {
		return err
	}
	if settings.DropIns != "" {
		i.add(Changes, settings.DropIns, filepath.Base(strings.TrimSuffix(settings.Unit, ".service")), "Copy what you need of it to /etc/systemd/system/kedge.service.d.")
	}
	cfg, sources := settings.Config, settings.Sources
	noted := map[string]bool{}
	for _, notice := range cfg.Notices {
		result := Changes
		row, _ := config.K3sKeyOf(notice.Name)
		switch {
		case notice.Verdict == config.Refused:
			result = Cannot
		case notice.Verdict == config.Needless && row.Verdict == config.Same:
			result = Works // only one value of it needs nothing
		}
		noted[notice.Source] = true
		i.add(result, i.where(notice.Source, settings), notice.Name, notice.Says)
	}
	if source := sources["token"]; source != "" && cfg.Agent.Server != "" {
		noted[source] = true
		i.add(Changes, i.where(source, settings), "token", "A node joins with a token of its kedge cluster: run `kedge token create` on a server of it. A short token, without K10...::, is refused unless insecure-short-token is set.")
	}
	for _, field := range cfg.Fields() {
		for source := range strings.SplitSeq(sources[field.Key], ", ") {
			if source != "" && !noted[source] && field.Key != "data-dir" {
				i.add(Works, i.where(source, settings), field.Key, "")
			}
		}
	}
	i.faults(settings)
	slices.SortStableFunc(i.found, inOrder)
	i.data, i.noGateway = settings.DataDir(), !cfg.Cluster.Has(config.Gateway)
	if source := sources["data-dir"]; source != "" {
		i.add(Changes, i.where(source, settings), "data-dir", "kedge makes files of its own: give it another folder than k3s's.")
	}
	return nil
}

// inOrder compares the places of findings: first by files, then by lines.
func inOrder(a, b Finding) int {
	fileA, lineA, _ := strings.Cut(a.Source, ":")
	fileB, lineB, _ := strings.Cut(b.Source, ":")
	numberA, _ := strconv.Atoi(lineA)
	numberB, _ := strconv.Atoi(lineB)
	return cmp.Or(strings.Compare(fileA, fileB), numberA-numberB)
}

// faults adds what is wrong with the configuration beyond the names in it: values that
// cannot be read, and what Validate says.
func (i *installation) faults(settings *k3shost.Settings) {
	for _, err := range settings.Faults {
		var field *config.FieldError
		switch {
		case !errors.As(err, &field):
			i.add(Cannot, k3shost.ConfigFolder, "config.yaml", i.shown(err.Error()))
		case slices.ContainsFunc(settings.Config.Notices, func(n config.Notice) bool { return n.Name == field.Key && n.Verdict == config.Refused }):
		case slices.Contains([]string{"token-file", "agent-token-file", "flannel-conf"}, field.Key) && i.root != "/":
			// These files need not be in a copy, and are looked for below / only.
		default:
			source := cmp.Or(settings.Sources[field.Key], k3shost.ConfigFolder)
			i.add(Cannot, i.where(source, settings), field.Key, field.Detail)
		}
	}
}

// where returns the file of a source: variables and flags are the service's.
func (i *installation) where(source string, settings *k3shost.Settings) string {
	switch {
	case strings.HasPrefix(source, "$"):
		return settings.VariableFile
	case strings.HasPrefix(source, "--"):
		return settings.Unit
	}
	return i.shown(source)
}

// datastores are the places of k3s's own datastores, below its data-dir.
var datastores = map[string]string{"SQLite": "server/db/state.db", "etcd": "server/db/etcd"}

// datastore tells what becomes of the objects of a cluster whose datastore is k3s's own.
func (i *installation) datastore() {
	for _, name := range slices.Sorted(maps.Keys(datastores)) {
		path := filepath.Join(i.data, datastores[name])
		if i.exists(path) {
			i.add(Changes, path, name, "These are the objects of the cluster. `kedge adopt k3s` takes them over. Without it, kedge begins an empty cluster.")
		}
	}
}

// files tells what to do with files that set the kubelet and containerd.
func (i *installation) files() error {
	files, err := k3shost.Files(i.path(i.data))
	for _, file := range files {
		i.add(Changes, i.shown(file.Path), filepath.Base(file.Path), file.Do)
	}
	return err
}

// registries reads registries.yaml with the code that reads kedge's.
func (i *installation) registries() error {
	const file = k3shost.ConfigFolder + "/registries.yaml"
	if !i.exists(file) {
		return nil
	}
	if _, err := registries.New(i.path(file), nil, nil); err != nil {
		i.add(Cannot, file, "registries.yaml", i.shown(err.Error())+".")
		return nil
	}
	i.add(Works, file, "registries.yaml", "Copy the file to /etc/kedge/registries.yaml.")
	return nil
}
