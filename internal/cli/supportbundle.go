package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/localapi"
	"github.com/kedge-dev/kedge/internal/base/logging"
	"github.com/kedge-dev/kedge/internal/base/recording"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/inspect/flight"
	"github.com/kedge-dev/kedge/internal/inspect/settings"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/internal/inspect/support"
	"github.com/kedge-dev/kedge/internal/node/containerd/registries"
)

func supportBundleCommand() *cli.Command {
	return &cli.Command{
		Name: "support-bundle",
		Usage: "write an archive that helps others to find a fault on this host: status, configuration, logs, kernel, network, containers, " +
			"and on a server nodes, pods and events. It has no secrets. It works when kedge does not run, too",
		Flags: serverFlags(
			&cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FILE` to write (default: kedge-support-HOST-TIME.tar.gz)"}),
		Before: noArguments,
		Action: func(c *cli.Context) error {
			err := asInstalled(c)
			if err != nil && !errors.Is(err, errServiceFlags) {
				return err
			}
			return supportBundle(c, err)
		},
	}
}

// supportBundle writes the archive. What is wrong on the host may be the service's
// flags, or the configuration itself.
func supportBundle(c *cli.Context, serviceFault error) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may read everything for the bundle: run this command with sudo")
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("get host name: %w", err)
	}
	folder := fmt.Sprintf("kedge-support-%s-%s", hostname, time.Now().Format("20060102-150405"))
	path := cmp.Or(c.String(outputFlag), folder+".tar.gz")
	cfg, sources, fault := loadSources(c)
	fault = errors.Join(serviceFault, fault)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make archive: %w; give another file with --output", err)
	}
	shown, notShown := settings.AskPrint(c.Context, local())
	where := func(key, otherwise string) string { return place(shown.Settings, key, otherwise) }
	dir := datadir.Dir(where("data-dir", cfg.DataDir))
	parts := slices.Concat(
		[]support.Part{
			settingsPart("config.yaml", "Of the kedge that runs.", shown.Settings, notShown),
			settingsPart("config-of-a-start.yaml", "What a start of the service would use, or of a server without flags if there is none.", cfg.Settings(sources, config.ServerRole), fault),
		},
		ownParts(dir),
		hostParts(dir),
		logParts(where("log", cfg.Log.File)),
		clusterParts(where("write-kubeconfig", cfg.Server.WriteKubeconfig)),
	)
	known := slices.Concat(secrets(cfg, dir), registries.Secrets(where("private-registry", cfg.Node.PrivateRegistry)))
	err = support.Write(c.Context, file, folder, parts, known)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	_, err = fmt.Fprintln(c.App.Writer, path)
	return err
}

// place returns a path that the kedge that runs has set, and the other one if none
// runs: it may have been started with other flags.
func place(running []config.Setting, key, otherwise string) string {
	i := slices.IndexFunc(running, func(s config.Setting) bool { return s.Key == key })
	if i < 0 {
		return otherwise
	}
	path, _ := running[i].Value.(string)
	return path
}

// settingsPart is a configuration, if fault does not say why there is none.
func settingsPart(name, whose string, shown []config.Setting, fault error) support.Part {
	return support.Part{Name: name, Get: func(context.Context) ([]byte, error) {
		if fault != nil {
			return nil, fault
		}
		return settingsYAML(whose, shown)
	}}
}

// ownParts are what kedge tells of itself.
func ownParts(dir datadir.Dir) []support.Part {
	return []support.Part{
		{Name: "version.txt", Get: func(context.Context) ([]byte, error) { return []byte(versionText()), nil }},
		{Name: "status.json", Get: func(ctx context.Context) ([]byte, error) {
			report, err := status.Fetch(ctx, local())
			if err != nil {
				return nil, err
			}
			return json.MarshalIndent(report, "", "  ")
		}},
		{Name: "check-config.txt", Get: func(ctx context.Context) ([]byte, error) {
			var text bytes.Buffer
			err := printChecks(&text, host.CheckHost(ctx, host.CheckConfig{DataDir: string(dir)}))
			return text.Bytes(), err
		}},
		{Name: "recorder.txt", Get: recorded(dir, flight.Flight.Table)},
		{Name: "recorder.json", Get: recorded(dir, flight.Flight.JSON)},
		{Name: "profiles/goroutine.txt", Get: profiled(settings.AskGoroutines)},
		{Name: "profiles/heap.pb.gz", Get: profiled(settings.AskHeap)},
	}
}

// recorded is the recording of the last day.
func recorded(dir datadir.Dir, print func(flight.Flight, io.Writer) error) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		now := time.Now()
		shown := flight.Flight{From: now.Add(-recording.Kept), To: now}
		var err error
		if shown.Recording, err = recording.Of(dir).Read(shown.From, shown.To); err != nil {
			return nil, err
		}
		var text bytes.Buffer
		err = print(shown, &text)
		return text.Bytes(), err
	}
}

func profiled(ask func(context.Context, *localapi.Client) ([]byte, error)) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) { return ask(ctx, local()) }
}

// hostParts are what the machine and its container runtime tell.
func hostParts(dir datadir.Dir) []support.Part {
	const own = "/proc/self/exe" // as `kedge crictl`
	return append(support.Host("/", "/run", string(dir), datadir.KubeletRoot),
		support.Command("network/nft.txt", nil, filepath.Join(datadir.HelpersLink, "nft"), "list", "ruleset"),
		support.Command("containers/pods.txt", nil, own, "crictl", "pods"),
		support.Command("containers/containers.txt", nil, own, "crictl", "ps", "--all"),
		support.Command("containers/images.txt", nil, own, "crictl", "images"),
	)
}

// logParts are the log, of the journal and of a file, if there is one.
func logParts(path string) []support.Part {
	parts := []support.Part{
		support.Log(support.Command("log/journal.txt", nil, "journalctl", "--no-pager", "--unit=kedge*", "--lines=20000", "--output=short-iso")),
	}
	for _, file := range logging.Files(path) {
		parts = append(parts, support.Log(support.File(filepath.Join("log", filepath.Base(file)), file)))
	}
	return parts
}

// clusterParts are what the API tells, on a server.
func clusterParts(kubeconfig string) []support.Part {
	client, err := adminClient(kubeconfig)
	if err != nil {
		return []support.Part{{Name: "cluster", Get: func(context.Context) ([]byte, error) { return nil, err }}}
	}
	return support.Cluster(client)
}

func adminClient(kubeconfig string) (kubernetes.Interface, error) {
	if _, err := os.Stat(kubeconfig); err != nil {
		return nil, fmt.Errorf("%w: only a server can tell of the cluster", err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return kubernetes.NewForConfig(admin)
}

// secrets are those that kedge itself has in files, besides keys, which nothing of the
// bundle comes near.
func secrets(cfg *config.Config, dir datadir.Dir) []string {
	known := cfg.SecretTexts()
	for _, path := range []string{dir.ServerToken(), dir.AgentToken(), datadir.NodePassword} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // not here
		}
		known = append(known, strings.TrimSpace(string(text)))
	}
	for _, text := range known {
		if token, err := join.ParseToken(text); err == nil {
			known = append(known, token.Secret)
		}
	}
	return known
}
