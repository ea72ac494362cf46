// Package deletions is the admission plugin KedgeDeletions, which notes in the datastore which user deletes an object. Nothing
// else in the datastore says so. With a backup, `kedge backup history` tells it.
package deletions

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/utils/lru"

	"github.com/kedge-dev/kedge/internal/base/deletion"
)

// Name is the plugin's name among the API server's arguments.
const Name = "KedgeDeletions"

const (
	// kept is how long the datastore keeps a note. By then the backup has read it, or the change is compacted and cannot be read any more.
	kept = 10 * time.Minute
	// Each namespace has so many notes a second, and so many at once. So the datastore has at most 3,500 notes of each, and a user who deletes
	// without end in one namespace takes no notes from the others.
	notesPerSecond, notesAtOnce = 5, 500
	// maxNamespaces bounds the memory. A namespace in which nobody has deleted for long begins anew.
	maxNamespaces = 1000
	// writeTime limits how long a deletion waits for the note.
	writeTime = 5 * time.Second
	// maxName bounds the length of a user's name in a note.
	maxName = 256
)

// Register adds the plugin to an API server's plugins, after all others: what they refuse is not noted. connect returns a
// client of the datastore, when the datastore is ready.
func Register(options *genericoptions.AdmissionOptions, connect func() (*clientv3.Client, error)) {
	options.Plugins.Register(Name, func(io.Reader) (admission.Interface, error) {
		return newPlugin(connect), nil
	})
	options.RecommendedPluginOrder = append(slices.Clone(options.RecommendedPluginOrder), Name)
}

// plugin is the admission plugin.
type plugin struct {
	*admission.Handler
	connect func() (*clientv3.Client, error)
	// limits has a *rate.Limiter by namespace.
	limits *lru.Cache
	log    *logrus.Entry
	// fails says that the last note could not be written. The log has that.
	fails atomic.Bool
}

func newPlugin(connect func() (*clientv3.Client, error)) *plugin {
	return &plugin{
		Handler: admission.NewHandler(admission.Delete), connect: sync.OnceValues(connect),
		limits: lru.New(maxNamespaces), log: logrus.WithField("component", "apiserver"),
	}
}

var _ admission.ValidationInterface = (*plugin)(nil)

// Validate implements admission.ValidationInterface. It allows everything, also if the note cannot be written.
func (p *plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" || a.IsDryRun() || passing(a.GetResource().GroupResource()) || isAutomatic(a.GetUserInfo().GetName()) {
		return nil
	}
	object, err := meta.Accessor(a.GetOldObject())
	if err != nil || !p.limit(object.GetNamespace()).Allow() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	resource, by := a.GetResource().Resource, a.GetUserInfo().GetName()
	err = p.note(ctx, deletion.Key(resource, object.GetNamespace(), object.GetName(), object.GetUID()), by[:min(len(by), maxName)])
	if failed := p.fails.Swap(err != nil); err != nil && !failed {
		p.log.Warnf("Cannot note who deletes objects, such as %s %s: %v. Until that works, `kedge backup history` does not name the user", resource, object.GetName(), err)
	}
	return nil
}

// limit returns the limit of a namespace. Two requests at the same time may both make the first limit of a namespace. Then the note of
// one request is not counted.
func (p *plugin) limit(namespace string) *rate.Limiter {
	if known, ok := p.limits.Get(namespace); ok {
		return known.(*rate.Limiter)
	}
	made := rate.NewLimiter(notesPerSecond, notesAtOnce)
	p.limits.Add(namespace, made)
	return made
}

// note writes who has asked first.
func (p *plugin) note(ctx context.Context, key, by string) error {
	client, err := p.connect()
	if err != nil {
		return err
	}
	lease, err := client.Grant(ctx, int64(kept/time.Second))
	if err != nil {
		return fmt.Errorf("ask the datastore for a lease: %w", err)
	}
	_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, by, clientv3.WithLease(lease.ID))).Commit()
	if err != nil {
		return fmt.Errorf("write into the datastore: %w", err)
	}
	return nil
}

// passing tells whether objects of a resource come and go all the time, and say nothing when they are gone.
func passing(resource schema.GroupResource) bool {
	return resource.Resource == "events" || resource == schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
}

// isAutomatic tells whether a user is a part of Kubernetes. These delete often, and only because somebody else has deleted or
// changed something.
func isAutomatic(name string) bool {
	return name == user.APIServerUser || slices.ContainsFunc([]string{"system:kube-", "system:node:", "system:serviceaccount:kube-system:"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
