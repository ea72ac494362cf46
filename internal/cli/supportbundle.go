package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/bootstrap"
	"github.com/kedge-dev/kedge/internal/config"
	"github.com/kedge-dev/kedge/internal/datadir"
	"github.com/kedge-dev/kedge/internal/host"
	"github.com/kedge-dev/kedge/internal/logs"
	"github.com/kedge-dev/kedge/internal/settings"
	"github.com/kedge-dev/kedge/internal/status"
	"github.com/kedge-dev/kedge/internal/support"
)

func supportBundleCommand() *cli.Command {
	return &cli.Command{
		Name: "support-bundle",
		Usage: "write an archive with what helps others to find what is wrong here: status, configuration, logs, kernel, network, containers, " +
			"and on a server nodes, pods and events; without secrets, and also when kedge does not run",
		Flags: append(configFlags(config.ServerRole),
			&cli.StringFlag{Name: outputFlag, Aliases: []string{"o"}, Usage: "`FILE` to write (default: kedge-support-HOST-TIME.tar.gz)"}),
		Before: noArguments,
		Action: supportBundle,
	}
}

func supportBundle(c *cli.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may read all that belongs in it; run it with sudo")
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("get host name: %w", err)
	}
	folder := fmt.Sprintf("kedge-support-%s-%s", hostname, time.Now().Format("20060102-150405"))
	path := c.String(outputFlag)
	if path == "" {
		path = folder + ".tar.gz"
	}
	// What is wrong may be the configuration itself.
	cfg, sources, fault := loadSources(c)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make archive: %w; give another file with --output", err)
	}
	parts := append(ownParts(cfg, sources, fault), hostParts(cfg)...)
	err = support.Write(c.Context, file, folder, append(parts, clusterParts(cfg)...), secrets(cfg))
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	_, err = fmt.Fprintln(c.App.Writer, path)
	return err
}

// ownParts are what kedge tells of itself. fault is what is wrong with the
// configuration on the disk, if anything.
func ownParts(cfg *config.Config, sources config.Sources, fault error) []support.Part {
	return []support.Part{
		{Name: "version.txt", Get: func(context.Context) ([]byte, error) { return []byte(versionText()), nil }},
		{Name: "status.json", Get: func(ctx context.Context) ([]byte, error) {
			report, err := status.Fetch(ctx, datadir.StatusSocket)
			if err != nil {
				return nil, err
			}
			return json.MarshalIndent(report, "", "  ")
		}},
		{Name: "config.yaml", Get: func(ctx context.Context) ([]byte, error) {
			shown, err := settings.AskPrint(ctx, datadir.SettingsSocket)
			if err != nil {
				return nil, err
			}
			return settingsYAML("Of the kedge that runs.", shown.Settings)
		}},
		{Name: "config-of-a-start.yaml", Get: func(context.Context) ([]byte, error) {
			if fault != nil {
				return nil, fault
			}
			return settingsYAML("What a start of a server without flags would use.", cfg.Settings(sources, config.ServerRole))
		}},
		{Name: "check-config.txt", Get: func(ctx context.Context) ([]byte, error) {
			var text bytes.Buffer
			err := printChecks(&text, host.CheckHost(ctx, host.CheckConfig{DataDir: cfg.DataDir}))
			return text.Bytes(), err
		}},
		{Name: "profiles/goroutine.txt", Get: profiled("goroutine")},
		{Name: "profiles/heap.pb.gz", Get: profiled("heap")},
	}
}

func profiled(name string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		return settings.AskProfile(ctx, datadir.SettingsSocket, name)
	}
}

// hostParts are what the machine, its container runtime and its logs tell.
func hostParts(cfg *config.Config) []support.Part {
	parts := support.Host("/", "/run", cfg.DataDir, datadir.KubeletRoot)
	helper := func(name string) string { return filepath.Join(datadir.HelpersLink, name) }
	runtime := []string{"CONTAINER_RUNTIME_ENDPOINT=unix://" + runtimeSocket(), "IMAGE_SERVICE_ENDPOINT=unix://" + runtimeSocket()}
	parts = append(parts,
		support.Command("network/nft.txt", nil, helper("nft"), "list", "ruleset"),
		support.Command("containers/pods.txt", runtime, helper("crictl"), "pods"),
		support.Command("containers/containers.txt", runtime, helper("crictl"), "ps", "--all"),
		support.Command("containers/images.txt", runtime, helper("crictl"), "images"),
		support.Log(support.Command("log/journal.txt", nil, "journalctl", "--no-pager", "--unit=kedge*", "--lines=20000", "--output=short-iso")),
	)
	files, err := logs.Files(cfg.Log.File)
	if err != nil {
		// The journal has it then, or whoever started kedge.
		return parts
	}
	for _, file := range files {
		parts = append(parts, support.Log(support.File(filepath.Join("log", filepath.Base(file)), file)))
	}
	return parts
}

// clusterParts are what the API tells, on a server.
func clusterParts(cfg *config.Config) []support.Part {
	client, err := adminClient(cfg.Server.WriteKubeconfig)
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
func secrets(cfg *config.Config) []string {
	known := cfg.SecretTexts()
	dir := datadir.Dir(cfg.DataDir)
	for _, path := range []string{dir.ServerToken(), dir.AgentToken(), datadir.NodePassword} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // not here
		}
		known = append(known, strings.TrimSpace(string(text)))
	}
	for _, text := range known {
		if token, err := bootstrap.ParseToken(text); err == nil {
			known = append(known, token.Secret)
		}
	}
	return known
}
