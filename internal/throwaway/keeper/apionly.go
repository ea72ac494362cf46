package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// Names of files in nodeEtc of a server without nodes.
const (
	apiKubeconfig = "kubeconfig"
	apiReady      = "ready.sock"
)

// apiServer is the name of the only process of a cluster without nodes, and of its log.
const apiServer = "api-server"

// keepAPI makes a cluster without nodes, and removes it when ctx ends. The cluster has the machine's network,
// so that its webhooks can be on the machine's loopback, as they are in tests of controllers.
func (k *keeper) keepAPI(ctx context.Context) error {
	return errors.Join(k.untilSeen(ctx, k.liveAPI(ctx)), k.Delete())
}

// liveAPI makes the cluster, and returns when ctx ends or when the cluster has failed. Nothing of the cluster
// runs then.
func (k *keeper) liveAPI(ctx context.Context) error {
	began := time.Now()
	k.report(Report{Name: k.Name, Logs: k.store.Logs(k.Cluster)})
	shared := filepath.Join(k.store.RunFolder(k.Name), "api")
	if err := os.Mkdir(shared, 0o700); err != nil {
		return fmt.Errorf("make folder of the server: %w", datadir.Explain(err))
	}
	socket, err := net.ListenPacket("unixgram", filepath.Join(shared, apiReady))
	if err != nil {
		return fmt.Errorf("listen for the server: %w", err)
	}
	defer socket.Close()
	d := &daemon{ready: make(chan struct{})}
	go d.hear(socket)
	log, err := os.OpenFile(filepath.Join(k.store.Logs(k.Cluster), apiServer+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log of the server: %w", err)
	}
	defer log.Close()
	setup, err := k.apiSetup(shared)
	if err != nil {
		return err
	}
	program, err := hosts.StartProgram(setup, log)
	if err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	defer program.Kill()
	ended := func() error {
		return fmt.Errorf("the API server ended (%w). The end of its log:\n%s", orStatus(program.Err()), tail(log.Name()))
	}
	select {
	case <-d.ready:
	case <-program.Ended():
		return ended()
	case <-ctx.Done():
		return errEarly
	}
	k.step(apiServer, began)
	kubeconfig := filepath.Join(shared, apiKubeconfig)
	cfg, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig of the server: %w", err)
	}
	url := ""
	for _, cluster := range cfg.Clusters {
		url = cluster.Server
	}
	if err := os.Rename(kubeconfig, k.store.Kubeconfig(k.Name)); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if err := k.Write(clusters.Status{State: clusters.Ready, API: url, Keeper: os.Getpid()}); err != nil {
		return err
	}
	k.report(Report{Ready: true, Name: k.Name, API: url, Kubeconfig: k.store.Kubeconfig(k.Name), Logs: k.store.Logs(k.Cluster)})
	select {
	case <-ctx.Done():
		return nil
	case <-program.Ended():
		return ended()
	}
}

// apiSetup returns the setup of the server. shared is the folder that the server and the machine have in
// common.
func (k *keeper) apiSetup(shared string) (hosts.Setup, error) {
	executable, err := os.Executable()
	if err != nil {
		return hosts.Setup{}, fmt.Errorf("find the executable of kedge: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return hosts.Setup{}, err
	}
	at := layout{root: filepath.Join(k.store.RunFolder(k.Name), "root"), executable: executable}
	setup := at.base(apiServer)
	setup.Mounts = append(setup.Mounts, at.borrow("/usr", "/usr")...)
	setup.Mounts = append(setup.Mounts, hosts.Mount{Source: shared, Target: at.at(nodeEtc), Flags: unix.MS_BIND})
	for _, file := range []string{"/etc/hosts", "/etc/resolv.conf"} {
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			setup.Mounts = append(setup.Mounts, at.borrow(file, file)...)
		}
	}
	// The other ports of a server would clash with those of other servers on this machine. The parts of the cluster
	// that can be disabled do all their work on nodes.
	setup.Command = []string{
		Program, "server", "--disable-agent", "--bind-address=127.0.0.1", fmt.Sprint("--https-listen-port=", port),
		"--kube-controller-manager-arg=secure-port=0", "--kube-scheduler-arg=secure-port=0",
		"--write-kubeconfig=" + filepath.Join(nodeEtc, apiKubeconfig), "--disable-snapshots",
	}
	if k.Data == "" {
		setup.Command = append(setup.Command, "--disable="+parts())
	} else {
		// The objects of a disabled part would be removed.
		setup.Mounts = append(setup.Mounts, hosts.Mount{Source: k.Data, Target: at.at(config.Default().DataDir), Flags: unix.MS_BIND})
		// The endpoints of the Service kubernetes stay those that were backed up.
		setup.Command = append(setup.Command, "--disable-controller-manager", "--disable-scheduler", "--kube-apiserver-arg=endpoint-reconciler-type=none")
	}
	setup.Environment = append(k.environment(), "NOTIFY_SOCKET="+filepath.Join(nodeEtc, apiReady))
	return setup, nil
}

// parts returns the names of all parts that a cluster can do without.
func parts() string {
	var names []string
	for _, part := range config.Parts() {
		names = append(names, string(part))
	}
	return strings.Join(names, ",")
}

// freePort returns a port of loopback at which nobody listens.
func freePort() (int, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
