// Package containerd runs containerd in this process: it writes containerd's
// configuration, starts and stops its server, and preloads images. The agent
// package makes it; the kubelet and crictl reach it by its socket. Containers
// have shims of their own, which outlive it: the next start adopts them.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay/overlayutils"
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

// stopTimeout is how long containerd may take to stop. Pods do not need it to,
// so what is left then ends with the process.
const stopTimeout = 10 * time.Second

// readTimeout is how long an answer may take: the kubelet's
// runtimeRequestTimeout.
const readTimeout = 2 * time.Minute

// Config is what a containerd depends on. All paths are absolute.
type Config struct {
	// Root is for images and snapshots, State for what a reboot removes. The
	// path of State may have 60 bytes, as it holds sockets.
	Root, State string
	// Socket is where the CRI and containerd's own API are served.
	Socket string
	// ConfigFile is where the configuration that is used is written; DropIns are
	// patterns of files with the user's own, merged over it in their order.
	ConfigFile string
	DropIns    []string
	// CertsDir is the folder of registry settings, a hosts.toml for each.
	CertsDir string
	// Source knows where images come from.
	Source Source
	// PauseArchive is the image archive of PauseImage, which every pod needs.
	PauseArchive, PauseImage string
	// ImagesDir holds image archives to preload.
	ImagesDir string
	// CNIBinDirs are searched in order.
	CNIBinDirs []string
	CNIConfDir string
	// Snapshotter is overlayfs, native, or one that a drop-in brings; empty
	// means overlayfs where Root's file system can have it, else native.
	Snapshotter string
	// DefaultRuntime is the handler of pods without a RuntimeClass.
	DefaultRuntime string
	SELinux        bool
	Facts          host.Facts
	// Warn tells users by an Event of the node about a file of theirs. It does not log.
	Warn func(message string)
	// Verbosity is restored after containerd has changed that of klog.
	Verbosity *kubeinit.Verbosity
}

// Containerd is the component. There can be one in a process, once: containerd
// registers its metrics for the whole of it.
type Containerd struct {
	cfg    Config
	log    *logrus.Entry
	reader Reader
}

// New makes a containerd. runc and its shim are found by PATH.
func New(cfg Config) *Containerd {
	return &Containerd{cfg: cfg, log: logrus.WithField("component", Name)}
}

// Name returns the component's name.
func (c *Containerd) Name() string { return Name }

// Run runs containerd until ctx is cancelled. It is ready when the CRI serves
// and all images to preload are there.
func (c *Containerd) Run(ctx context.Context, ready func()) error {
	for _, executable := range []string{"runc", "containerd-shim-runc-v2"} {
		if _, err := exec.LookPath(executable); err != nil {
			return fmt.Errorf("find %s: %w: this kedge was built without its helpers: build it with make", executable, err)
		}
	}
	snapshotter := c.snapshotter()
	// Before anything of containerd's runs: it logs while it loads.
	failed := captureLog()
	config, err := load(ctx, c.cfg, generate(c.cfg, snapshotter, Runtimes(), pickStreamPort()))
	if err != nil {
		return err
	}
	if keys := pullsItself(config); len(keys) > 0 {
		c.log.Warnf("%s in %v may have containerd pull without registries.yaml and embedded-registry: take it out; numbers of downloads belong to the plugin io.containerd.transfer.v1.local",
			strings.Join(keys, ", "), c.cfg.DropIns)
	}

	// containerd's own context: it is stopped by Stop, after whom it serves.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	srv, err := c.start(serving, config)
	if err != nil {
		return err
	}
	defer c.stop(srv)

	client, err := containerd.New(c.cfg.Socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		return fmt.Errorf("connect to containerd: %w", err)
	}
	defer client.Close()
	conn := client.Conn().(*grpc.ClientConn)
	// A stop waits for this too: the CRI, while it begins, reads the databases that
	// a stop closes, and panics without them (internal/cri/nri/nri_api_linux.go).
	//upstream:relies-on github.com/containerd/containerd/v2/internal/cri/nri/nri_api_linux.go API.Register
	beginning, end := outlast(ctx)
	err = interruptible(beginning, failed, func(ctx context.Context) error {
		return waitRuntime(ctx, cri.NewRuntimeServiceClient(conn))
	})
	end()
	preloading := c.newPreloader(client, cri.NewImageServiceClient(conn), snapshotter)
	if err == nil {
		err = interruptible(ctx, failed, preloading.importAll)
	}
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	ready()

	err = interruptible(ctx, failed, preloading.follow)
	if ctx.Err() != nil {
		return nil
	}
	return err
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

// interruptible runs do, and cancels it if containerd fails meanwhile.
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

// snapshotter is the configured one, or the best that works.
func (c *Containerd) snapshotter() string {
	if c.cfg.Snapshotter != "" {
		return c.cfg.Snapshotter
	}
	if err := overlayutils.Supported(c.cfg.Root); err != nil {
		c.log.Infof("no overlayfs on %s: images and containers are copied instead (snapshotter native), which takes disk and time: %v", c.cfg.Root, err)
		return native
	}
	return overlayfs
}

// stop closes what containerd can close. Shims and containers run on. These
// loops of upstream's cannot be stopped and end with the process, none of which
// writes: the event exchange (docker/go-events, broadcast.go), the CRI's
// snapshot statistics (internal/cri/server/images/snapshots.go) and event queue
// (internal/eventq/eventq.go), the watch on CDI's folders
// (tags.cncf.io/container-device-interface/pkg/cdi/cache.go) and the listener of
// the node resource interface, /var/run/nri/nri.sock (containerd/nri,
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

// waitRuntime waits until the CRI says that pods can be started, networks
// apart: those are ready once the network component has written them.
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

// poll asks until the answer is yes or ctx is done, and returns why it was no.
func poll(ctx context.Context, ask func(context.Context) (bool, error)) error {
	var no error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (ok bool, _ error) {
		ok, no = ask(ctx)
		return ok, nil
	})
	if err != nil {
		return errors.Join(no, err)
	}
	return nil
}
