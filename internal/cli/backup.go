package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/datastore/backup"
	"github.com/kedge-dev/kedge/internal/datastore/backup/chain"
	"github.com/kedge-dev/kedge/internal/datastore/backup/comeback"
	"github.com/kedge-dev/kedge/internal/datastore/backup/rebuild"
	"github.com/kedge-dev/kedge/internal/datastore/choice"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/session"
)

// The flags of commands that read a backup.
const (
	keyFlag       = "key"
	namespaceFlag = "namespace"
	atFlag        = "at"
	placeFlag     = "place"
)

func backupCommand() *cli.Command {
	return &cli.Command{
		Name:  "backup",
		Usage: "on a server: the backup that the setting backup names",
		Subcommands: []*cli.Command{{
			Name:   "key",
			Usage:  "make the recovery key, print it, and begin the backup. The key opens the backup. kedge does not keep it",
			Flags:  runningFlags(nil),
			Before: noArguments,
			Action: byRunning(makeBackupKey),
		}, {
			Name:      "open",
			Usage:     "run a command with a Kubernetes API that has the state of an earlier time. Nothing can be changed there",
			ArgsUsage: "-- COMMAND [ARGUMENT...]",
			Flags:     serverFlags(append(readingFlags(), placeOption(), progressFlag())...),
			Action:    openBackup,
		}, {
			Name:      "history",
			Usage:     "list all versions of an object, with who wrote them and what changed",
			ArgsUsage: "RESOURCE/NAME",
			Flags:     serverFlags(keyOption(), placeOption(), namespaceOption("of the object")),
			Action:    showHistory,
		}, {
			Name:      "volume",
			Usage:     "write the contents of the volume of a claim to standard output, as a tar archive",
			ArgsUsage: "CLAIM",
			Flags:     serverFlags(append(readingFlags(), placeOption(), namespaceOption("of the claim"))...),
			Action:    writeVolume,
		}, {
			Name:   "verify",
			Usage:  "on a server: restore the newest state into an API for a moment, and compare it with the cluster, object by object",
			Flags:  serverFlags(keyOption(), placeOption(), progressFlag()),
			Action: withConfig(verifyBackup),
		}},
	}
}

// readingFlags are the flags of commands that read a backup.
func readingFlags() []cli.Flag {
	return []cli.Flag{
		keyOption(),
		&cli.StringFlag{Name: atFlag, Usage: "the state of this `TIME|REVISION`, such as \"2026-11-29 15:04\" (default: the newest)"},
	}
}

func keyOption() cli.Flag {
	return &cli.StringFlag{Name: keyFlag, Usage: "`FILE` with the recovery key, or - for standard input"}
}

func placeOption() cli.Flag {
	return &cli.StringFlag{Name: placeFlag, Usage: "where the backup is: s3://ENDPOINT/BUCKET/FOLDER or file:///FOLDER (default: the setting backup)"}
}

func namespaceOption(whose string) cli.Flag {
	return &cli.StringFlag{Name: namespaceFlag, Aliases: []string{"n"}, Usage: "`NAMESPACE` " + whose, Value: metav1.NamespaceDefault}
}

// writeVolume writes the contents of a volume to standard output.
func writeVolume(c *cli.Context) (err error) {
	if c.NArg() != 1 {
		return fmt.Errorf("`kedge backup volume` takes the name of one claim, got %d", c.NArg())
	}
	cfg, err := installedConfig(c)
	if err != nil {
		return err
	}
	state, err := loadBackup(c, cfg, c.String(placeFlag), os.TempDir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	volumes, err := state.Volumes(c.Context)
	if err != nil {
		return err
	}
	claim := c.String(namespaceFlag) + "/" + c.Args().First()
	i := slices.IndexFunc(volumes, func(v *comeback.Volume) bool { return v.Claim == claim })
	if i < 0 {
		return fmt.Errorf("the cluster had no claim %s with a volume of kedge's at %s: give another time with --at, or another namespace with -n", claim, state.Time.Local().Format(time.DateTime))
	}
	if volumes[i].Fault != nil {
		return errors.New(volumes[i].String())
	}
	fmt.Fprintf(c.App.ErrWriter, "kedge: this is %s\n", volumes[i])
	return state.WriteVolume(c.Context, volumes[i], c.App.Writer)
}

// openBackup gives a command the state of an earlier time.
func openBackup(c *cli.Context) (err error) {
	if err := someArguments("-- and the command that gets the API, as in kedge backup open --key FILE --at '2026-11-29 15:04' -- kubectl get pods -A", "")(c); err != nil {
		return err
	}
	cfg, err := installedConfig(c)
	if err != nil {
		return err
	}
	return withBackup(c, cfg, func(string, *comeback.State) []string { return c.Args().Slice() })
}

// verifyBackup compares the newest state with the cluster.
func verifyBackup(c *cli.Context, cfg *config.Config) error {
	return withBackup(c, cfg, func(executable string, state *comeback.State) []string {
		return []string{executable, compareCommand, cfg.Server.WriteKubeconfig, strconv.FormatInt(state.Revision, 10)}
	})
}

// compareCommand is the hidden command that verifyBackup runs with the API of the backup.
const compareCommand = "backup-compare"

func compareBackupCommand() *cli.Command {
	return &cli.Command{Name: compareCommand, Hidden: true, Action: compareBackup}
}

// compareBackup compares the cluster of a kubeconfig with that of the environment, whose newest revision is given.
func compareBackup(c *cli.Context) error {
	live, err := clientcmd.BuildConfigFromFlags("", c.Args().Get(0))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	restored, err := clientcmd.BuildConfigFromFlags("", os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	revision, err := strconv.ParseInt(c.Args().Get(1), 10, 64)
	if err != nil {
		return fmt.Errorf("read revision: %w", err)
	}
	found, err := comeback.Compare(c.Context, live, restored, revision)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s.\n", found)
	if len(found.Different) > 0 {
		return errors.New("the backup does not have the state of the cluster: look at `kedge status`, and save a snapshot")
	}
	return nil
}

// withBackup runs a command with a Kubernetes API that has the state of the flags.
func withBackup(c *cli.Context, cfg *config.Config, command func(executable string, state *comeback.State) []string) (err error) {
	folder, err := os.MkdirTemp("", "kedge-backup-")
	if err != nil {
		return fmt.Errorf("make folder for the state: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	state, err := loadBackup(c, cfg, c.String(placeFlag), folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	fmt.Fprintf(c.App.ErrWriter, "kedge: this is %s\n", state)
	copied := config.Default()
	copied.DataDir = folder
	if err := choice.CopyState(c.Context, copied, state); err != nil {
		return err
	}
	steps, err := newProgress(c.App.ErrWriter, c.String(outputFlag))
	if err != nil {
		return err
	}
	store, err := clusters.Default()
	if err != nil {
		return err
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find executable: %w", err)
	}
	status, err := session.Run(c.Context, session.Options{
		Store: store, Cluster: clusters.Cluster{Temporary: true, APIOnly: true, Data: folder}, Owner: session.User{ID: owner(), Group: ownerGroup()},
		Command: command(executable, state), Executable: executable, Progress: steps.step, Note: steps.note,
	})
	if err != nil {
		return cli.Exit(err.Error(), max(status, 1))
	}
	if status != 0 {
		return cli.Exit("", status)
	}
	return nil
}

// showHistory prints a line for each version of an object, and one for each field that has changed.
func showHistory(c *cli.Context) error {
	resource, name, ok := strings.Cut(c.Args().First(), "/")
	if c.NArg() != 1 || !ok || resource == "" || name == "" {
		return errors.New("`kedge backup history` takes one object, such as deployment/web")
	}
	cfg, err := installedConfig(c)
	if err != nil {
		return err
	}
	found, err := openedBackup(c, cfg, c.String(placeFlag))
	if err != nil {
		return err
	}
	versions := 0
	err = found.History(c.Context, comeback.Object{Resource: resource, Namespace: c.String(namespaceFlag), Name: name}, func(change comeback.Change) error {
		versions++
		at := "before the backup"
		if !change.Time.IsZero() {
			at = change.Time.Local().Format(time.DateTime)
		}
		fmt.Fprintf(c.App.Writer, "%-19s  revision %-10d %s", at, change.Revision, change.What)
		if change.By != "" {
			fmt.Fprintf(c.App.Writer, " by %s", change.By)
		}
		fmt.Fprintln(c.App.Writer)
		for _, field := range change.Fields {
			fmt.Fprintf(c.App.Writer, "    %s\n", field)
		}
		return nil
	})
	if err == nil && versions == 0 {
		err = fmt.Errorf("the backup has no %s of the name %s in namespace %s", resource, name, c.String(namespaceFlag))
	}
	return err
}

// openedBackup opens the backup at a place, or at that of the settings, with the key of the flags.
func openedBackup(c *cli.Context, cfg *config.Config, location string) (*comeback.Backup, error) {
	location = cmp.Or(location, cfg.Server.Backup.Location)
	if location == "" {
		return nil, errors.New("it is not known where the backup is: give --place, or run this with the configuration of a server that has the setting backup")
	}
	key, err := readKey(c)
	if err != nil {
		return nil, err
	}
	return comeback.Open(c.Context, location, cfg.Server.Snapshots.S3Settings, key)
}

func makeBackupKey(c *cli.Context) error {
	key, warning, err := backup.AskKey(c.Context, local())
	if err != nil {
		return err
	}
	if warning != "" {
		fmt.Fprintln(c.App.ErrWriter, "warning: "+warning)
	}
	_, err = fmt.Fprintf(c.App.Writer, `# The recovery key of a kedge cluster. Keep it apart from the server and from the backup.
# Whoever has it can read the backup. Without it, nobody can. Restore with:
#   kedge restore PLACE --key FILE
%s
`, key)
	return err
}

func restoreCommand() *cli.Command {
	return &cli.Command{
		Name:      "restore",
		Usage:     "make this machine the server of a backup, while kedge does not run",
		ArgsUsage: "PLACE",
		Description: "PLACE is what the setting backup was: s3://ENDPOINT/BUCKET/FOLDER or file:///FOLDER. Files below /etc/kedge\n" +
			"that exist are not replaced. The machine that wrote the backup before can no longer write it.",
		Flags: serverFlags(append(readingFlags(),
			&cli.BoolFlag{Name: checkFlag, Usage: "read and verify everything, say what would be restored, and change nothing"})...),
		Action: restoreBackup,
	}
}

func restoreBackup(c *cli.Context) (err error) {
	if c.NArg() != 1 {
		return fmt.Errorf("`kedge restore` takes the place of one backup, got %d: s3://ENDPOINT/BUCKET/FOLDER or file:///FOLDER", c.NArg())
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may restore: run this command with sudo")
	}
	cfg, err := installedConfig(c)
	if err != nil {
		return err
	}
	dir, folder := datadir.Dir(cfg.DataDir), os.TempDir()
	if !c.Bool(checkFlag) {
		folder = dir.Server()
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return fmt.Errorf("make folder of the server: %w", datadir.Explain(err))
		}
	}
	state, err := loadBackup(c, cfg, c.Args().First(), folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	fmt.Fprintf(c.App.Writer, "The backup has %s.\n", state)
	volumes, err := state.Volumes(c.Context)
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		fmt.Fprintf(c.App.Writer, "- %s\n", volume)
	}
	if c.Bool(checkFlag) {
		return checkVolumes(c, state, volumes)
	}
	pid, err := dir.Holder()
	if err != nil {
		return err
	}
	if pid != 0 {
		return fmt.Errorf("restore works only while kedge does not run, and process %d runs it: stop it, such as with `systemctl stop kedge`", pid)
	}
	if err := writeFiles(c, state, map[string]string{backup.ConfigFolder: filepath.Dir(config.DefaultPath)}); err != nil {
		return err
	}
	// The configuration may have come with the backup, and may name another data directory.
	if cfg, err = installedConfig(c); err != nil {
		return err
	}
	if err := writeFiles(c, state, backup.Folders(datadir.Dir(cfg.DataDir))); err != nil {
		return err
	}
	if err := keepName(cfg, state.About.Node); err != nil {
		return err
	}
	restored, err := choice.RestoreState(c.Context, cfg, state, volumes)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "This machine is now server %s. The earlier data, if there were any, are in %s.\nStart kedge now. Agents that reach the server at its old address find it by themselves. On each other agent, set server to the new address and restart kedge.\n",
		state.About.Node, restored.Replaced)
	if restored.Others != "" {
		fmt.Fprintln(c.App.Writer, restored.Others)
	}
	return nil
}

// checkVolumes reads and verifies the contents of all volumes.
func checkVolumes(c *cli.Context, state *comeback.State, volumes []*comeback.Volume) error {
	var faults []error
	for _, volume := range volumes {
		if volume.Backup == nil {
			continue // it was said
		}
		if fault := state.WriteVolume(c.Context, volume, io.Discard); fault != nil {
			faults = append(faults, fmt.Errorf("volume %s: %w", volume.Name, fault))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("the backup is damaged: %w", err)
	}
	fmt.Fprintln(c.App.Writer, "Everything was read and verified. Nothing was changed.")
	return nil
}

// writeFiles writes the files of folders, and says which it leaves as they are.
func writeFiles(c *cli.Context, state *comeback.State, folders map[string]string) error {
	for name, folder := range folders {
		left, err := state.WriteFiles(name, folder)
		if err != nil {
			return err
		}
		for _, file := range left {
			fmt.Fprintf(c.App.Writer, "%s is there already, and differs from the one in the backup. It stays as it is.\n", file)
		}
	}
	return nil
}

// loadBackup reads the backup at a place, or at that of the settings, with the key and the point in time of the flags.
func loadBackup(c *cli.Context, cfg *config.Config, location, folder string) (*comeback.State, error) {
	at, err := rebuild.ParseAt(c.String(atFlag))
	if err != nil {
		return nil, err
	}
	found, err := openedBackup(c, cfg, location)
	if err != nil {
		return nil, err
	}
	return found.Load(c.Context, at, folder, progressBar(c.App.ErrWriter))
}

// readKey reads the recovery key from the file of the flag.
func readKey(c *cli.Context) (*chain.RecoveryKey, error) {
	var text []byte
	var err error
	switch file := c.String(keyFlag); file {
	case "":
		return nil, errors.New("a backup opens only with its recovery key: give the file with --key. `kedge backup key` has printed it")
	case "-":
		text, err = io.ReadAll(io.LimitReader(c.App.Reader, 1<<16))
	default:
		text, err = datadir.ReadText(file)
	}
	if err != nil {
		return nil, fmt.Errorf("read recovery key: %w", err)
	}
	return chain.ParseRecoveryKey(text)
}

// progressBar shows on a terminal how much has been read.
func progressBar(w io.Writer) rebuild.Progress {
	file, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return func(done, all int64) {
		const width = 40
		full := int(width * done / max(all, 1))
		fmt.Fprintf(w, "\r[%s%s] %3d %% of %.1f MiB", strings.Repeat("#", full), strings.Repeat(".", width-full), 100*done/max(all, 1), float64(all)/(1<<20))
		if done == all {
			fmt.Fprintln(w)
		}
	}
}

// keepName makes the node of this machine have the name that it has in the backup. Volumes belong to a node by its name.
func keepName(cfg *config.Config, name string) error {
	node, err := host.ResolveNode(cfg.Node, cfg.Cluster.PodCIDRs())
	if err != nil || node.Name == name {
		return err
	}
	folder := config.DefaultPath + ".d"
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	cfg.Node.NodeName = name
	return datadir.WriteFile(filepath.Join(folder, "restored.yaml"), []byte("# kedge restore has written this: the node keeps its name.\nnode-name: "+name+"\n"), 0o600)
}
