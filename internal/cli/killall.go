package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v2"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kedge-dev/kedge/internal/agent"
	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/removal/install"
	"github.com/kedge-dev/kedge/internal/removal/teardown"
)

const yesFlag = "yes"

// stopPatience is how long a running kedge may take to stop, a little more
// than it allows itself.
const stopPatience = 40 * time.Second

func killallCommand() *cli.Command {
	return &cli.Command{
		Name:   "killall",
		Usage:  "stop kedge and all its pods, and remove their interfaces, mounts, cgroups and packet filters. State on disk stays",
		Flags:  serverFlags(),
		Action: withConfig(killall),
	}
}

func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name: "uninstall",
		Usage: "do what killall does, and remove all state, the configuration and the program: " +
			"the cluster's objects, volumes and images are gone for good",
		Flags: serverFlags(&cli.BoolFlag{Name: yesFlag, Usage: "do not ask for confirmation"}),
		Action: withConfig(func(c *cli.Context, cfg *config.Config) error {
			if !c.Bool(yesFlag) && !confirmed(c, cfg) {
				return errors.New("nothing was removed. To remove everything, answer yes or give --yes")
			}
			if err := killall(c, cfg); err != nil {
				return fmt.Errorf("nothing was removed from the disk: %w", err)
			}
			if err := uninstall(c.Context, cfg); err != nil {
				return err
			}
			logrus.Info("kedge is removed. Kernel modules that it has loaded, and kernel settings that it has changed, such as net.ipv4.ip_forward, stay until the next boot")
			return nil
		}),
	}
}

func confirmed(c *cli.Context, cfg *config.Config) bool {
	fmt.Fprintf(c.App.Writer, "This removes %s with all objects, volumes and images of this cluster. Type yes to go on: ", cfg.DataDir)
	var answer string
	_, err := fmt.Fscanln(c.App.Reader, &answer)
	return err == nil && answer == "yes"
}

func killall(c *cli.Context, cfg *config.Config) error {
	if os.Geteuid() != 0 {
		return errors.New("only root may stop kedge and its pods: run this command with sudo")
	}
	dir := datadir.Dir(cfg.DataDir)
	if err := stopService(c.Context, dir); err != nil {
		return err
	}
	_, err := os.Stat(string(dir))
	missing := errors.Is(err, fs.ErrNotExist)
	if !missing {
		if err := stopRunning(c.Context, dir); err != nil {
			return err
		}
		// Held, so that kedge is not started while its pods are taken away.
		lock, err := dir.Hold()
		if err != nil {
			return err
		}
		defer lock.Release()
	}
	// A kedge that runs on another data directory is not the one that is meant.
	hostLock, err := datadir.LockHost()
	if err != nil {
		return err
	}
	defer hostLock.Release()
	if missing {
		logrus.Infof("Nothing to stop: %s does not exist. If kedge ran with another folder, give it with --data-dir", dir)
		return nil
	}
	// nft and iptables: without them there are no rules of kedge's either.
	helpers, err := assets.Unpack(dir.Assets())
	if err == nil {
		err = agent.UseHelpers(helpers.Bin)
	}
	return errors.Join(err, teardown.Cleanup(c.Context, dir, cfg.Node, cfg.Cluster.PodCIDRs()))
}

// stopService stops the service of install.sh, unless a kedge on another data
// directory runs, which is not the one that is meant.
func stopService(ctx context.Context, dir datadir.Dir) error {
	running, err := dir.Holder()
	if err != nil {
		return err
	}
	if running == 0 {
		lock, err := datadir.LockHost()
		if err != nil {
			return err
		}
		if err := lock.Release(); err != nil {
			return err
		}
	}
	host, err := install.Look("/")
	if err != nil {
		return err
	}
	return host.StopService(ctx)
}

// stopRunning ends the kedge that runs on dir, if there is one: in order if it
// can, else by force.
func stopRunning(ctx context.Context, dir datadir.Dir) error {
	began := time.Now()
	signal := syscall.SIGTERM
	signalled := 0
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		pid, err := dir.Holder()
		if err != nil || pid == 0 {
			return true, err
		}
		switch waited := time.Since(began); {
		case waited > stopPatience+10*time.Second:
			return false, fmt.Errorf("kedge (process %d) was killed and has not ended. Look for a disk that does not answer, or reboot", pid)
		case waited > stopPatience && signal != syscall.SIGKILL:
			signal, signalled = syscall.SIGKILL, 0
		}
		// Once: a second SIGTERM would end it at once, in no order.
		if pid != signalled {
			if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return false, fmt.Errorf("stop kedge (process %d): %w", pid, err)
			}
			signalled = pid
		}
		return false, nil
	})
}

// uninstall removes all state and what was installed. What says where these are
// goes last: whatever fails can be mended, and uninstall be run again.
func uninstall(ctx context.Context, cfg *config.Config) error {
	if err := teardown.Remove(datadir.Dir(cfg.DataDir)); err != nil {
		return err
	}
	faults := []error{teardown.RemoveLogind(ctx, "/")}
	if err := os.Remove(cfg.Server.WriteKubeconfig); !errors.Is(err, fs.ErrNotExist) {
		faults = append(faults, err)
	}
	host, err := install.Look("/")
	if err == nil {
		err = host.Remove(ctx)
	}
	if err := errors.Join(append(faults, err)...); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(config.DefaultPath))
}
