// Package growing makes a server with SQLite the first of several with etcd. The server is killed
// while it moves its data, and the power of its disk is cut. Afterwards everything must be as
// before.
package growing

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	objects = 10_000
	kills   = 20
	db      = "/var/lib/kedge/server/db"
	moving  = "Moving the state from SQLite"
)

func TestSQLiteToEtcd(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	disk := slowfs.Mount(t, host, db, slowfs.Limits{})
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Kubectl("create", "secret", "generic", "kept", "--from-literal=word=s3cret")
	c.Kubectl("create", "serviceaccount", "robot")
	c.RunDeployment("sleepers")
	token, err := c.Client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	makeConfigMaps(t, c.Client)
	containers := c.Containers()
	// The restart makes now the changes that a start makes.
	server.Restart()
	before := everything(t, server)
	server.Terminate()

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	killWhileMoving(t, host, disk, rand.New(rand.NewPCG(seed, 0)))
	first := host.StartServer(t, "--cluster-init")
	first.WaitReady()
	c = cluster.Of(t, first)

	wantSame(t, "after the move", before, everything(t, first))
	c.WantSameContainers(containers)
	for name, there := range map[string]bool{"state.db": false, "state.db-wal": false, "state.db.before-etcd": true, "etcd/migrating": false} {
		if _, err := os.Stat(host.Path(db + "/" + name)); (err == nil) != there {
			t.Errorf("%s: got %v, want it there: %t", name, err, there)
		}
	}
	if secret, err := c.Client.CoreV1().Secrets("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil || string(secret.Data["word"]) != "s3cret" {
		t.Errorf("the Secret is %v, %v", secret, err)
	}
	wantToken(t, first, token.Status.Token)
	wantNewer(t, c.Client, before)

	t.Log("a second server joins, and the first continues without the flag")
	second := network.NewHost(t, "server-2").StartServer(t, "--server=https://"+host.Address.String()+":6443", "--token="+first.Token())
	second.WaitReady()
	wantSame(t, "at the second server", before, everything(t, second))
	first.Terminate()
	second.Terminate()
	first = host.StartServer(t)
	second.Start()
	first.WaitReady()
	second.WaitReady()
	c = cluster.Of(t, second)
	wantSame(t, "with two servers", before, everything(t, second))
	c.WantSameContainers(containers)
	wantToken(t, second, token.Status.Token)
	c.Scale("sleepers", 1)
}

// makeConfigMaps creates many objects, changes some and deletes some.
func makeConfigMaps(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	api := client.CoreV1().ConfigMaps("default")
	var workers sync.WaitGroup
	const parallel = 32
	for worker := range parallel {
		workers.Go(func() {
			for i := worker; i < objects; i += parallel {
				object := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("object-", i)},
					Data:       map[string]string{"value": strings.Repeat("x", i%2000)},
				}
				made, err := api.Create(t.Context(), object, metav1.CreateOptions{})
				if err == nil && i%10 == 1 {
					made.Data["value"] = "changed"
					_, err = api.Update(t.Context(), made, metav1.UpdateOptions{})
				}
				if err == nil && i%100 == 2 {
					err = api.Delete(t.Context(), object.Name, metav1.DeleteOptions{})
				}
				if err != nil {
					t.Errorf("write %s: %v", object.Name, err)
					return
				}
			}
		})
	}
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// killWhileMoving starts a server with etcd several times and kills it, every second time together
// with the power of its disk. It does so while the server moves its data and, when these have
// moved, while it starts.
func killWhileMoving(t *testing.T, host *harness.Host, disk *slowfs.Disk, random *rand.Rand) {
	t.Helper()
	server := host.StartServer(t, "--cluster-init")
	begun, during := 0, 0
	for round := range kills {
		if moved(host) {
			time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second))))
		} else {
			begun = waitMoving(t, server, begun)
			// The first kills come at once, later ones after up to a second: the machine decides
			// how long the move takes.
			time.Sleep(time.Duration(random.Int64N(int64(round+1) * int64(time.Second) / kills)))
		}
		if round%2 == 1 {
			if err := disk.Cut(); err != nil {
				t.Fatal(err)
			}
		}
		server.Kill9()
		disk.PowerOn()
		if !moved(host) {
			during++
		}
		if round < kills-1 {
			server.Start()
		}
	}
	t.Logf("of %d kills %d were before the end of the move", kills, during)
	if during == 0 {
		t.Error("no kill came during the move, so the test shows nothing")
	}
}

// waitMoving waits until a server has begun to move its data once more than before, or has moved
// them. It returns how often the server has begun.
func waitMoving(t *testing.T, server *harness.Server, before int) int {
	t.Helper()
	for deadline := time.Now().Add(cluster.Patience); ; time.Sleep(2 * time.Millisecond) {
		begun := strings.Count(server.Log(), moving)
		if begun > before || moved(server.Host) {
			return begun
		}
		if time.Now().After(deadline) {
			t.Fatalf("the move has begun %d times, and does not again", begun)
		}
	}
}

// moved tells whether a server has etcd.
func moved(host *harness.Host) bool {
	_, err := os.Stat(host.Path(db + "/etcd/member/wal"))
	return err == nil
}

// fleeting are resources that a start, a clock, a disk or another server changes, and resources
// that are not stored.
var fleeting = []string{"events", "leases", "nodes", "csinodes", "pods", "endpoints", "endpointslices", "componentstatuses", "apiservices",
	"servicecidrs", "ipaddresses", "csistoragecapacities"}

// everything returns all objects of a server's API as JSON, by their resource and name.
func everything(t *testing.T, server *harness.Server) map[string]string {
	t.Helper()
	config := server.RESTConfig()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || !slices.Contains(resource.Verbs, "create") || slices.Contains(fleeting, resource.Name) {
				continue
			}
			all, err := client.Resource(version.WithResource(resource.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s: %v", resource.Name, err)
			}
			for _, object := range all.Items {
				text, err := json.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				found[strings.Join([]string{resource.Name, version.Group, object.GetNamespace(), object.GetName()}, " ")] = string(text)
			}
		}
	}
	return found
}

// wantSame checks that all objects are as before, including resourceVersion and uid.
func wantSame(t *testing.T, when string, before, after map[string]string) {
	t.Helper()
	changed := 0
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] != before[name] {
			if changed++; changed <= 10 {
				t.Errorf("%s %s is\n%.3000s\nand was\n%.3000s", when, name, after[name], before[name])
			}
		}
	}
	t.Logf("%s %d of %d objects have changed", when, changed, len(before))
}

// wantToken checks that a service account's token is still valid.
func wantToken(t *testing.T, server *harness.Server, token string) {
	t.Helper()
	config := server.RESTConfig()
	config.BearerToken, config.CertData, config.KeyData = token, nil, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
		t.Errorf("the token of the service account: got user %v, %v, want default:robot", who, err)
	}
}

// wantNewer checks that a new object has a higher resourceVersion than all earlier objects.
func wantNewer(t *testing.T, client kubernetes.Interface, before map[string]string) {
	t.Helper()
	made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "newer"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	version := func(text string) uint64 {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("resourceVersion %q: %v", text, err)
		}
		return n
	}
	for name, text := range before {
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		if object.ResourceVersion != "" && version(object.ResourceVersion) >= version(made.ResourceVersion) {
			t.Errorf("a new object has resourceVersion %s, and %s %s", made.ResourceVersion, name, object.ResourceVersion)
		}
	}
}
