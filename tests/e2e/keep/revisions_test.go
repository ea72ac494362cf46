package keep

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

// revisionsLookedAt is how many revisions TestRevisions opens.
const revisionsLookedAt = 50

// recordedFor is how long the cluster changes.
const recordedFor = time.Minute

// notCompared are the kinds that differ, or may.
var notCompared = map[string]string{
	"leases":                            "the backup does not have their renewals",
	"events":                            "the API removes them after their time",
	"validatingadmissionpolicies":       "that of the command forbids changes",
	"validatingadmissionpolicybindings": "that of the command forbids changes",
}

// kinds returns the kinds that are compared.
func kinds(c *cluster.Cluster) (kinds []schema.GroupVersionResource) {
	c.Helper()
	lists, err := c.Client.Discovery().ServerPreferredResources()
	if err != nil {
		c.Fatal(err)
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			c.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if notCompared[resource.Name] == "" {
				kinds = append(kinds, version.WithResource(resource.Name))
			}
		}
	}
	return kinds
}

// recorder remembers each version of each object that a client saw.
type recorder struct {
	t       *testing.T
	kinds   []schema.GroupVersionResource
	watches sync.WaitGroup
	mu      sync.Mutex
	seen    []version
}

// version is an object at a revision. Its hash is empty if the object was deleted then.
type version struct {
	revision     int64
	object, hash string
}

func (r *recorder) add(object *unstructured.Unstructured, deleted bool) {
	seen := version{revision: revision(r.t, object.GetResourceVersion()), object: nameOf(object)}
	if !deleted {
		seen.hash = hash(r.t, object)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, seen)
}

func nameOf(object *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s %s/%s", object.GetAPIVersion(), object.GetKind(), object.GetNamespace(), object.GetName())
}

// hash is that of the whole content of an object but its resourceVersion, because those of a restored state go on upwards.
func hash(t *testing.T, object *unstructured.Unstructured) string {
	object.SetResourceVersion("")
	content, err := json.Marshal(object.Object)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// follow records a kind from now on until ctx ends.
func (r *recorder) follow(ctx context.Context, client dynamic.Interface, kind schema.GroupVersionResource) {
	list, err := client.Resource(kind).List(ctx, metav1.ListOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range list.Items {
		r.add(&list.Items[i], false)
	}
	changes, err := client.Resource(kind).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		r.t.Fatal(err)
	}
	r.watches.Go(func() {
		for event := range changes.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok || event.Type == watch.Error {
				break
			}
			r.add(object, event.Type == watch.Deleted)
		}
		if ctx.Err() == nil {
			r.t.Errorf("the watch of %s has ended too early", kind.Resource)
		}
	})
}

// at returns the hash of each object that there was at a revision.
func (r *recorder) at(revision int64) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	newest := map[string]version{}
	for _, v := range r.seen {
		if v.revision <= revision && v.revision >= newest[v.object].revision {
			newest[v.object] = v
		}
	}
	objects := map[string]string{}
	for name, v := range newest {
		if v.hash != "" {
			objects[name] = v.hash
		}
	}
	return objects
}

// TestRevisions changes a cluster while a client records what it sees. The backup then gives exactly what the client saw, at any revision.
func TestRevisions(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	b := newBucket(t)
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	b.serve(host)
	host.WriteFile("/etc/kedge/config.yaml", settings)
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	host.WriteFile("/opt/key", makeKey(t, host))
	c.RunDeployment("scaled")

	client, err := dynamic.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{t: t, kinds: kinds(c)}
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	for _, kind := range r.kinds {
		r.follow(watching, client, kind)
	}
	first, last := change(c)
	inBackup(c, host, last, append(slices.Clone(restore), "--key", "/opt/key"))
	endWatches()
	r.watches.Wait()
	from, to := revision(t, first.ResourceVersion), revision(t, last.ResourceVersion)
	t.Logf("of %d kinds, the client saw %d versions of objects, up to revision %d", len(r.kinds), len(r.seen), to)
	for range revisionsLookedAt {
		r.compare(host, from+rand.Int64N(to-from+1))
	}
}

// change changes objects for a while: ConfigMaps come, change and go, and a Deployment has more and fewer pods. It returns the first that
// it made, and the last.
func change(c *cluster.Cluster) (first, last *corev1.ConfigMap) {
	ctx, objects := c.Context(), c.Client.CoreV1().ConfigMaps(cluster.Namespace)
	deployments := c.Client.AppsV1().Deployments(cluster.Namespace)
	for step, end := 0, time.Now().Add(recordedFor); time.Now().Before(end); step++ {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(step)}, Data: map[string]string{"random": strings.Repeat(fmt.Sprint(rand.Int64()), 1+rand.IntN(50))}}
		object, err := objects.Create(ctx, object, metav1.CreateOptions{})
		if err != nil {
			c.Fatal(err)
		}
		if last = object; first == nil {
			first = object
		}
		if step%3 == 2 {
			patch := fmt.Appendf(nil, `{"data":{"changed":"%d"}}`, rand.Int64())
			if _, err := objects.Patch(ctx, name(rand.IntN(step)), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				c.Fatal(err)
			}
		}
		if step%2 == 1 {
			if err := objects.Delete(ctx, name(rand.IntN(step)), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				c.Fatal(err)
			}
		}
		if step%20 == 0 {
			replicas := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, rand.IntN(4))
			if _, err := deployments.Patch(ctx, "scaled", types.MergePatchType, replicas, metav1.PatchOptions{}); err != nil {
				c.Fatal(err)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return first, last
}

// compare opens the backup at a revision.
func (r *recorder) compare(host *harness.Host, revision int64) {
	r.t.Helper()
	var names []string
	for _, kind := range r.kinds {
		names = append(names, fmt.Sprintf("%s.%s.%s", kind.Resource, kind.Version, kind.Group))
	}
	command := host.Kedge(r.t.Context(), "backup", "open", "--key", "/opt/key", "--at", fmt.Sprint(revision), "--",
		os.Getenv("KEDGE_BINARY"), "kubectl", "get", strings.Join(names, ","), "--all-namespaces", "--show-managed-fields", "--output=json")
	var said strings.Builder
	command.Stderr = &said
	output, err := command.Output()
	if err != nil {
		r.t.Fatalf("open revision %d: %v\n%s", revision, err, said.String())
	}
	var list unstructured.UnstructuredList
	if err := json.Unmarshal(output, &list); err != nil {
		r.t.Fatal(err)
	}
	found := map[string]string{}
	for i := range list.Items {
		found[nameOf(&list.Items[i])] = hash(r.t, &list.Items[i])
	}
	wanted := r.at(revision)
	if len(wanted) == 0 {
		r.t.Fatalf("the client saw nothing up to revision %d", revision)
	}
	for object := range wanted {
		if found[object] != wanted[object] {
			r.t.Errorf("revision %d: %s is there with hash %q, and the client saw %q", revision, object, found[object], wanted[object])
		}
		delete(found, object)
	}
	for object := range found {
		r.t.Errorf("revision %d: %s is there, and the client did not see it", revision, object)
	}
}
