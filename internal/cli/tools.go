package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	ctr "github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/urfave/cli/v2"
	"k8s.io/client-go/tools/clientcmd"
	kubecli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/kedge-dev/kedge/internal/base/assets"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localapi"

	_ "github.com/kedge-dev/kedge/internal/cli/translations" // for kubectl alone
	_ "k8s.io/client-go/plugin/pkg/client/auth"              // kubectl's client auth plugins
)

func kubectlCommand() *cli.Command {
	return &cli.Command{
		Name:            "kubectl",
		Usage:           "run upstream's kubectl, with all its commands. It uses this server's kubeconfig",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			setDefaultEnv("KUBECONFIG", serverKubeconfig())
			// kubectl reads os.Args itself, and finds plugins by it.
			os.Args = append([]string{"kubectl"}, c.Args().Slice()...)
			// A bad verbosity is reported when the flags are parsed below.
			_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args))
			options := kubectl.KubectlOptions{
				PluginHandler: plugins{kubectl.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes)},
				Arguments:     os.Args,
			}
			options.In, options.Out, options.ErrOut = os.Stdin, os.Stdout, os.Stderr
			if err := kubecli.RunNoErrOutput(kubectl.NewDefaultKubectlCommandWithArgs(options)); err != nil {
				// Prints it kubectl's way and ends with kubectl's own status.
				kubectlutil.CheckErr(err)
			}
			return nil
		},
	}
}

func ctrCommand() *cli.Command {
	return &cli.Command{
		Name:            "ctr",
		Usage:           "run containerd's client ctr on kedge's containerd, in the namespace k8s.io",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			setDefaultEnv("CONTAINERD_ADDRESS", runtimeSocket())
			setDefaultEnv("CONTAINERD_NAMESPACE", "k8s.io")
			return ctr.New().Run(c.Context, append([]string{"ctr"}, c.Args().Slice()...))
		},
	}
}

func crictlCommand() *cli.Command {
	return &cli.Command{
		Name:            "crictl",
		Usage:           "run crictl, the client of the CRI, on kedge's container runtime",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			setDefaultEnv("CONTAINER_RUNTIME_ENDPOINT", "unix://"+runtimeSocket())
			setDefaultEnv("IMAGE_SERVICE_ENDPOINT", "unix://"+runtimeSocket())
			path, err := crictl()
			if err != nil {
				return err
			}
			return fmt.Errorf("run %s: %w", path, syscall.Exec(path, append([]string{"crictl"}, c.Args().Slice()...), os.Environ()))
		},
	}
}

// crictl returns the path of crictl, beside the helpers of the running kedge.
func crictl() (string, error) {
	helpers, err := os.Readlink(datadir.HelpersLink)
	if errors.Is(err, fs.ErrNotExist) {
		return "", localapi.ErrNotRunning
	}
	if err != nil {
		return "", fmt.Errorf("find the helpers of the running kedge: %w", err)
	}
	return assets.Tool(assets.RootOf(helpers), "crictl")
}

// runtimeSocket is where the running kedge's container runtime listens.
func runtimeSocket() string {
	if socket, err := os.Readlink(datadir.RuntimeLink); err == nil {
		return socket
	}
	return datadir.ContainerdSocket
}

// setDefaultEnv sets an environment variable that the user has not set.
func setDefaultEnv(name, value string) {
	if os.Getenv(name) == "" && value != "" {
		os.Setenv(name, value)
	}
}

// serverKubeconfig returns the path of the kubeconfig that this host's server
// writes, or nothing if there is none for this user, who is told then.
func serverKubeconfig() string {
	path := config.Default().Server.WriteKubeconfig
	// A file that is wrong or for root only is no reason not to run kubectl.
	if cfg, err := config.Load(config.DefaultPath); err == nil {
		path = cfg.Server.WriteKubeconfig
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) && !ownKubeconfig() {
		fmt.Fprintf(os.Stderr, "kedge: %s is not for this user: run it with sudo, or start the server with --write-kubeconfig-mode\n", path)
	}
	if err != nil {
		return ""
	}
	f.Close()
	return path
}

// ownKubeconfig tells whether the user has a kubeconfig where kubectl looks.
func ownKubeconfig() bool {
	_, err := os.Stat(clientcmd.RecommendedHomeFile)
	return os.Getenv("KUBECONFIG") != "" || err == nil
}
