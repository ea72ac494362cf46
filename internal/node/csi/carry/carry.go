// Package carry brings the contents of this node's volumes to a server that backs them up, and back after they were lost. The server asks by annotations of
// PersistentVolumes. The agent package runs it on every node.
package carry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
	"github.com/kedge-dev/kedge/internal/base/namequeue"
	"github.com/kedge-dev/kedge/internal/base/objectcache"
	"github.com/kedge-dev/kedge/internal/cluster/volumedata"
	"github.com/kedge-dev/kedge/internal/node/csi/volume"
	"github.com/kedge-dev/kedge/internal/node/runtimesocket"
)

// firstRetry and lastRetry are the shortest and longest wait between attempts.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Driver has the volumes of the node: csi.Driver.
type Driver interface {
	Has(name string) (bool, error)
	Describe(name string) (json.RawMessage, error)
	Export(ctx context.Context, name string, w io.Writer, around func(do func() error) error) error
	Import(ctx context.Context, name string, about json.RawMessage, at time.Time, size int64, archive io.Reader) error
	Await(name string, at time.Time, fault error)
	Forget(name string)
}

// Config is what New needs.
type Config struct {
	// Node is this node's name.
	Node   string
	Driver Driver
	Server volumedata.Server
	// Runtime is the socket of the container runtime.
	Runtime string
	// Informers provide PersistentVolumes.
	Informers objectcache.Source
}

// Carrier is the component. It carries one volume at a time.
type Carrier struct {
	Config
	log     *logrus.Entry
	queue   namequeue.Queue
	volumes corelisters.PersistentVolumeLister
}

// New returns the component.
func New(cfg Config) *Carrier {
	return &Carrier{Config: cfg, log: logrus.WithField("component", "volume-data")}
}

// Name implements component.Component.
func (*Carrier) Name() string { return "volume-data" }

// Run implements component.Component.
func (c *Carrier) Run(ctx context.Context, ready func()) error {
	ctx, factory, end, err := c.Informers.Open(ctx)
	if err != nil {
		return err
	}
	defer end()
	c.queue = namequeue.New("volume-data", firstRetry, lastRetry)
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	volumes := factory.Core().V1().PersistentVolumes()
	c.volumes = volumes.Lister()
	// Adding a handler fails only on an informer that has stopped.
	_, _ = volumes.Informer().AddEventHandler(cache.FilteringResourceEventHandler{FilterFunc: c.isMine, Handler: objectcache.OnChange(c.queue.AddObject)})
	factory.StartWithContext(ctx)
	ready()
	c.queue.Work(ctx, c.look, c.tell)
	return nil
}

// tell logs why a volume has another turn, except that something else is being done with it.
func (c *Carrier) tell(name cache.ObjectName, err error) {
	if !errors.Is(err, volume.ErrBusy) {
		c.log.Warnf("%s: %v. Trying again", name.Name, err)
	}
}

// isMine tells whether a server has asked for a volume of this node.
func (c *Carrier) isMine(object any) bool {
	pv, ok := objectcache.Latest(object).(*corev1.PersistentVolume)
	if !ok {
		return false
	}
	node, ours := localstorage.NodeOf(pv)
	if !ours || node != c.Node {
		return false
	}
	if at, ok := pv.Annotations[volumedata.RestoreAnnotation]; ok {
		c.await(pv.Name, at, nil)
		return true
	}
	return pv.Annotations[volumedata.BackupAnnotation] != ""
}

// await tells the kubelet that the contents come, before the volume has its turn.
func (c *Carrier) await(name, at string, fault error) {
	if has, err := c.Driver.Has(name); has || err != nil {
		return
	}
	of, _ := time.Parse(time.RFC3339, at) // the time is only for people
	c.Driver.Await(name, of, fault)
}

func (c *Carrier) look(ctx context.Context, name cache.ObjectName) error {
	pv, err := c.volumes.Get(name.Name)
	if apierrors.IsNotFound(err) || err == nil && !c.isMine(pv) {
		c.Driver.Forget(name.Name)
		return nil
	}
	if err != nil {
		return err
	}
	if at, ok := pv.Annotations[volumedata.RestoreAnnotation]; ok {
		if err = c.restore(ctx, pv.Name); err != nil && ctx.Err() == nil {
			c.await(pv.Name, at, err)
		}
	} else {
		err = c.save(ctx, pv.Name)
	}
	if errors.Is(err, volumedata.ErrNotAsked) { // another change follows
		return nil
	}
	return err
}

// restore gets the contents of a volume, unless it is there: the disk of this node was not lost.
func (c *Carrier) restore(ctx context.Context, name string) error {
	has, err := c.Driver.Has(name)
	if err != nil {
		return err
	}
	if !has {
		began := time.Now()
		err := c.Server.Restore(ctx, c.Node, name, func(contents volumedata.Contents) error {
			return c.Driver.Import(ctx, name, contents.About, contents.Time, contents.Size, contents.Archive)
		})
		if err != nil {
			return fmt.Errorf("restore from the backup: %w", err)
		}
		c.log.Infof("Volume %s is restored from the backup, in %s", name, time.Since(began).Round(time.Second))
	}
	c.Driver.Forget(name)
	return c.Server.Tell(ctx, c.Node, name, volumedata.Report{})
}

// save sends the contents of a volume.
func (c *Carrier) save(ctx context.Context, name string) error {
	about, err := c.Driver.Describe(name)
	if err == nil {
		err = c.send(ctx, name, about)
	}
	if err == nil || errors.Is(err, volumedata.ErrNotAsked) || errors.Is(err, volume.ErrBusy) || ctx.Err() != nil {
		return err
	}
	c.log.Warnf("Volume %s is not backed up: %v", name, err)
	return c.Server.Tell(ctx, c.Node, name, volumedata.Report{Fault: err.Error()})
}

func (c *Carrier) send(ctx context.Context, name string, about json.RawMessage) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read, write := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := c.Driver.Export(ctx, name, write, func(do func() error) error { return c.withHooks(ctx, name, do) })
		write.CloseWithError(err)
		exported <- err
	}()
	// The copy of a volume may take long before there is anything to send.
	first := make([]byte, 1)
	_, err := io.ReadFull(read, first)
	if err == nil {
		err = c.Server.Save(ctx, c.Node, name, about, io.MultiReader(bytes.NewReader(first), read))
	}
	read.CloseWithError(errStopped)
	cancel()
	// If the export has failed, its error gives the cause. The server has only seen that the contents break off.
	if fault := <-exported; fault != nil && !errors.Is(fault, errStopped) && !errors.Is(fault, context.Canceled) {
		return fault
	}
	return err
}

// withHooks runs the commands of pods around do.
func (c *Carrier) withHooks(ctx context.Context, name string, do func() error) error {
	r, conn, err := runtimesocket.Connect(c.Runtime)
	if err != nil {
		return err
	}
	defer conn.Close()
	h, err := hooksOf(ctx, r, name)
	if err != nil {
		return err
	}
	return h.around(ctx, do)
}

// errStopped ends an export that the server no longer reads.
var errStopped = errors.New("the server takes no more of the volume")
