// Package containerd runs containerd in this process. It writes containerd's configuration, starts
// and stops its server, and preloads images. The agent package creates it. The kubelet and crictl
// reach it through its socket. Containers have shims, which outlive this process: the next start
// adopts them.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/internal/base/kubeinit"
)

// Name is the component's name.
const Name = "containerd"

// The snapshotters that are built in.
const (
	overlayfs = "overlayfs"
	native    = "native"
)

// stopTimeout limits how long containerd may take to stop. Pods do not depend on a clean stop, so
// whatever still runs then ends with the process.
const stopTimeout = 10 * time.Second

// readTimeout limits how long Reader waits for an answer. It is the kubelet's default of
// runtimeRequestTimeout.
const readTimeout = 2 * time.Minute

// Config is what New needs. All paths are absolute.
type Config struct {
	// Root holds images and snapshots, State what a reboot removes. State holds sockets, so its path
	// may have at most 60 bytes.
	Root, State string
	// Socket is the path at which the CRI and containerd's own API are served.
	Socket string
	// ConfigFile is where kedge writes the configuration that it uses. DropIns are patterns of
	// the user's own files, which are merged over it in this order.
	ConfigFile string
	DropIns    []string
	// CertsDir is the folder of containerd's registry settings, with a hosts.toml for each registry.
	CertsDir string
	// Source knows where images come from.
	Source Source
	// PauseArchive is the image archive of PauseImage, which every pod needs.
	PauseArchive, PauseImage string
	// ImagesDir holds image archives to preload.
	ImagesDir string
	// CNIBinDirs are the folders of CNI plugins, searched in this order.
	CNIBinDirs []string
	CNIConfDir string
	// Snapshotter is overlayfs, native, or a snapshotter that a drop-in configures. If it is
	// empty, it is overlayfs where Root's file system supports it, and native elsewhere.
	Snapshotter string
	// DefaultRuntime is the handler for pods that have no RuntimeClass.
	DefaultRuntime string
	SELinux        bool
	// NonrootDevices gives containers that do not run as root the devices of their pod.
	NonrootDevices bool
	Facts          host.Facts
	// Warn tells users about a fault in one of their files, by an Event of the node. It does not log.
	Warn func(message string)
	// Verbosity is restored after containerd has changed that of klog.
	Verbosity *kubeinit.Verbosity
}

// Containerd is the component. A process can have one Containerd and run it once, because
// containerd registers its metrics for the whole process.
type Containerd struct {
	cfg    Config
	log    *logrus.Entry
	reader Reader
}

// New returns a containerd. It finds runc and its shim by PATH.
func New(cfg Config) *Containerd {
	return &Containerd{cfg: cfg, log: logrus.WithField("component", Name)}
}

// Name returns the component's name.
func (c *Containerd) Name() string { return Name }

// Run runs containerd until ctx is cancelled. It is ready when the CRI serves and all images to
// preload are imported.
func (c *Containerd) Run(ctx context.Context, ready func()) error {
	for _, executable := range []string{"runc", "containerd-shim-runc-v2"} {
		if _, err := exec.LookPath(executable); err != nil {
			return fmt.Errorf("find %s: %w: this kedge was built without its helper programs: build it with `make`", executable, err)
		}
	}
	found := findings{snapshotter: c.snapshotter(), runtimes: Runtimes(), streamPort: pickStreamPort(), shimCgroup: c.shimCgroup(ctx)}
	// This comes before any code of containerd runs, because containerd logs while it loads.
	failed := captureLog(ctx)
	config, err := load(ctx, c.cfg, generate(c.cfg, found))
	if err != nil {
		return err
	}
	if keys := pullsItself(config); len(keys) > 0 {
		c.log.Warnf("%s in %v may make containerd ignore registries.yaml and embedded-registry when it pulls images: remove it; set the number of parallel downloads in the plugin io.containerd.transfer.v1.local",
			strings.Join(keys, ", "), c.cfg.DropIns)
	}

	// containerd has a context of its own: c.stop ends it, after the parts that use it.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel()
	ended := newEndings(c.log, config.Root, config.State)
	ended.begin()
	log.L.Logger.AddHook(ended)
	keeping.Go(func() { ended.run(serving) })
	srv, err := c.start(serving, config)
	if err != nil {
		return err
	}
	// Processes end after containerd, so that it does not take note of it: as after a power cut, nobody
	// knows whether they had done their work, and a Job whose process ends with 0 has not completed.
	var left []process
	defer func() { endAll(left) }()
	defer c.stop(srv)

	client, err := containerd.New(c.cfg.Socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer client.Close()
	conn := client.Conn().(*grpc.ClientConn)
	// A stop waits for the CRI to finish its start too. While it starts, the CRI reads the databases
	// that a stop closes, and panics without them (internal/cri/nri/nri_api_linux.go).
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/nri/nri_api_linux.go API.Register
	beginning, end := outlast(ctx)
	err = interruptible(beginning, failed, func(ctx context.Context) error {
		return waitRuntime(ctx, cri.NewRuntimeServiceClient(conn))
	})
	end()
	if err == nil {
		err = interruptible(ctx, failed, func(ctx context.Context) error { return c.forgetHalfRemoved(ctx, client, config.Root) })
	}
	preloading := c.newPreloader(client, cri.NewImageServiceClient(conn), found.snapshotter)
	if err == nil {
		err = interruptible(ctx, failed, preloading.begin)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := reserve(config.Root); err != nil {
		c.log.Warnf("If the disk fills up, containerd may be unable to remove containers: %v. Free space on the disk, and restart kedge", err)
	}
	ready()

	err = interruptible(ctx, failed, preloading.follow)
	if ctx.Err() == nil {
		return err
	}
	left = c.leftAtShutdown(context.WithoutCancel(ctx), client, cri.NewRuntimeServiceClient(conn))
	return nil
}

// leftAtShutdown returns the processes that are to be ended because the machine shuts down, or none.
// systemd alone would send them SIGTERM, and wait for 90 seconds for those that ignore it, such as the
// first one of a container without a handler.
func (c *Containerd) leftAtShutdown(ctx context.Context, client *containerd.Client, runtime cri.RuntimeServiceClient) []process {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout/2)
	defer cancel()
	if !host.IsShuttingDown(ctx) {
		return nil
	}
	left, err := running(ctx, client, runtime)
	if err != nil {
		c.log.Warnf("The machine may take longer to shut down: %v", err)
	}
	c.log.Infof("The machine shuts down: ending %d containers", len(left))
	return left
}

// outlast returns a context that ends stopTimeout after ctx.
func outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-longer.Done():
		case <-time.After(stopTimeout):
			cancel()
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// interruptible runs do, and cancels it if containerd fails in the meantime.
func interruptible(ctx context.Context, failed <-chan error, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case err := <-failed:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	err := do(ctx)
	cancel(nil)
	<-done
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// snapshotter returns the configured snapshotter, or the best one that works on this host.
func (c *Containerd) snapshotter() string {
	if c.cfg.Snapshotter != "" {
		return c.cfg.Snapshotter
	}
	if err := overlayutils.Supported(c.cfg.Root); err != nil {
		c.log.Infof("%s does not support overlayfs, so images and containers are copied instead (snapshotter native), which takes more disk space and time: %v", c.cfg.Root, err)
		return native
	}
	return overlayfs
}

// shimCgroup returns the cgroup for shims, or nothing if they stay in that of kedge: only systemd has units
// whose limits they would share. On version 1 a shim would need a cgroup for each controller.
func (c *Containerd) shimCgroup(ctx context.Context) string {
	if !c.cfg.Facts.Systemd || c.cfg.Facts.CgroupVersion != 2 {
		return ""
	}
	if err := host.Systemctl(ctx, "start", host.ShimSlice); err != nil {
		c.log.Warnf("The shims of new pods share the limits of kedge's unit: %v", err)
		return ""
	}
	return host.ShimCgroup
}

// stop closes what containerd can close. Shims and containers keep running. Some of upstream's
// loops cannot be stopped and end with the process. None of them writes: the event exchange
// (docker/go-events, broadcast.go), the CRI's snapshot statistics
// (internal/cri/server/images/snapshots.go) and event queue (internal/eventq/eventq.go), the watch
// on CDI's folders (tags.cncf.io/container-device-interface/pkg/cdi/cache.go) and, if the user has
// switched it on, the listener of the node resource interface, /var/run/nri/nri.sock (containerd/nri,
// pkg/adaptation/adaptation.go).
//
//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/server/images/snapshots.go
//upstream:relies-on github.com/containerd/containerd/v2/internal/eventq/eventq.go
//upstream:relies-on github.com/docker/go-events/broadcast.go
//upstream:relies-on tags.cncf.io/container-device-interface/pkg/cdi/cache.go
//upstream:relies-on github.com/containerd/nri/pkg/adaptation/adaptation.go Adaptation.startListener Adaptation.Stop
func (c *Containerd) stop(srv *server.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Stop()
	}()
	select {
	case <-done:
	case <-time.After(stopTimeout):
		c.log.Warnf("containerd did not stop within %s", stopTimeout)
	}
}

// waitRuntime waits until the CRI says that pods can be started. It does not wait for the network,
// which becomes ready when the network component has written its CNI configuration.
func waitRuntime(ctx context.Context, client cri.RuntimeServiceClient) error {
	return poll(ctx, func(ctx context.Context) (bool, error) {
		response, err := client.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return false, fmt.Errorf("ask containerd for its status: %w", err)
		}
		for _, condition := range response.Status.Conditions {
			if condition.Type == cri.RuntimeReady && condition.Status {
				return true, nil
			}
		}
		return false, errors.New("containerd's runtime is not ready")
	})
}

// slowStart is how often poll says what it waits for.
const slowStart = 20 * time.Second

// poll asks until the answer is yes, however long that takes on a slow machine. If ctx ends before
// that, it returns why the last answer was no. If containerd fails, ctx ends: see interruptible.
func poll(ctx context.Context, ask func(context.Context) (bool, error)) error {
	var no error
	told := time.Now()
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (ok bool, _ error) {
		if ok, no = ask(ctx); !ok && time.Since(told) >= slowStart {
			told = time.Now()
			logrus.WithField("component", Name).Warnf("Still waiting: %v", no)
		}
		return ok, nil
	})
	if err != nil {
		return errors.Join(no, err)
	}
	return nil
}
