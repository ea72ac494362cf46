// Package snapshot saves a cluster, changes it, and restores it: on the same disk and on a new one,
// from the folder and from S3. The restore must bring back everything in the snapshot and nothing
// created later, and clients that saw later objects must list again.
package snapshot

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/kedge-dev/kedge/internal/testutil/s3"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
)

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

const (
	serverDir = "/var/lib/kedge/server"
	folder    = cluster.Snapshots
	bucket    = "backups"
	// s3Config says how kedge finds the S3 of serveS3. The keys are in a Secret.
	s3Config = `
s3: true
s3-endpoint: localhost:9443
s3-endpoint-ca: /etc/kedge/s3.crt
s3-bucket: backups
s3-folder: one/cluster
`
)

// serveS3 serves S3 on a host's loopback address, with a certificate that only clients with
// /etc/kedge/s3.crt trust.
func serveS3(t *testing.T, host *harness.Host) *s3.Server {
	t.Helper()
	certificate, key := cluster.Certificate(t, "localhost")
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	host.WriteFile("/etc/kedge/s3.crt", string(certificate))
	store := &s3.Server{Bucket: bucket, AccessKey: "user"}
	server := &http.Server{Handler: store}
	listener := tls.NewListener(host.Listen("127.0.0.1:9443"), &tls.Config{Certificates: []tls.Certificate{pair}})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Close() })
	return store
}

// kedge runs `kedge snapshot` on the server's host.
func kedge(c *cluster.Cluster, args ...string) (string, error) {
	return cluster.Snapshot(c.Server.Host, args...)
}

func must(c *cluster.Cluster, args ...string) string {
	c.Helper()
	return c.MustSnapshot(c.Server.Host, args...)
}

// refused checks that a command fails with a message that has each of the words.
func refused(c *cluster.Cluster, words []string, args ...string) {
	c.Helper()
	c.RefusedSnapshot(c.Server.Host, words, args...)
}

// save saves a snapshot and returns the name of its file.
func save(c *cluster.Cluster, name string) string {
	c.Helper()
	location, _, _ := strings.Cut(must(c, "save", "--name="+name), "\n")
	path, ok := strings.CutPrefix(location, "file://")
	if !ok || !strings.HasPrefix(filepath.Base(path), name+"-server-1-") {
		c.Fatalf("saved as %q", location)
	}
	return filepath.Base(path)
}

// start starts the server again and makes new clients, because its certificates may have changed.
func start(c *cluster.Cluster) {
	c.Helper()
	c.Server.Start()
	c.Server.WaitReady()
	c.Client = c.Server.Client()
}

func TestSaveAndRestore(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := cluster.NewHost(t, network, "server-1")
	store := serveS3(t, host)
	host.WriteFile("/etc/kedge/config.yaml", "s3-config-secret: s3-keys"+s3Config)
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Kubectl("create", "secret", "generic", "s3-keys", "--namespace=kube-system", "--from-literal=s3-access-key=user", "--from-literal=s3-secret-key=secret")
	agent := c.Join(network, "agent-1")
	c.RunWeb("web", "server-1")
	c.RunWeb("there", "agent-1")
	c.ServeWeb()
	c.RunDeployment("many")
	c.Kubectl("create", "configmap", "deleted", "--from-literal=value=before")
	c.Kubectl("create", "configmap", "changed", "--from-literal=value=before")

	// This client watches all the time, and does not know what is done to the server.
	watcher := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace(cluster.Namespace))
	configMaps := watcher.Core().V1().ConfigMaps().Lister().ConfigMaps(cluster.Namespace)
	ctx, stop := context.WithCancel(t.Context())
	watcher.Start(ctx.Done())
	watcher.WaitForCacheSync(ctx.Done())
	defer watcher.Shutdown()
	defer stop()
	sees := func(what string, values map[string]string) {
		t.Helper()
		c.Eventually("the one who watches to see "+what, func() error {
			for name, want := range values {
				object, err := configMaps.Get(name)
				switch {
				case apierrors.IsNotFound(err) && want == "":
				case err != nil:
					return err
				case object.Data["value"] != want:
					return fmt.Errorf("ConfigMap %s is %q, want %q", name, object.Data["value"], want)
				}
			}
			return nil
		})
	}

	before, containers := c.Objects(), c.Containers()
	name := save(c, "first")
	if keys := store.Keys(); !slices.Equal(keys, []string{"one/cluster/" + name}) {
		t.Errorf("in S3 are %q", keys)
	}
	wantObjects(c, "file://"+folder+"/"+name, "s3://backups/one/cluster/"+name)
	wantEvent(c, "SnapshotSaved", name)

	c.Kubectl("delete", "configmap", "deleted")
	c.Kubectl("patch", "configmap", "changed", "--patch", `{"data": {"value": "after"}}`)
	c.Kubectl("create", "configmap", "new", "--from-literal=value=after")
	c.Scale("many", 3)
	late := c.Join(network, "agent-2")
	sees("what is new", map[string]string{"deleted": "", "changed": "after", "new": "after"})
	last, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}

	refused(c, []string{"while the server is stopped", "already runs", "stop"}, "restore", name)
	server.Terminate()
	refusals(c, name)

	output := must(c, "restore", name)
	for _, want := range []string{"Restored " + name, serverDir + "/replaced-", "Start the server"} {
		if !strings.Contains(output, want) {
			t.Errorf("restore said %q, which lacks %q", output, want)
		}
	}
	start(c)
	sees("what there was before", map[string]string{"deleted": "before", "changed": "before", "new": ""})
	wantGone(c, last.ResourceVersion)
	// The cluster does not know this agent: it joined after the snapshot.
	late.Terminate()
	late.Start()
	late.WaitReady()
	late.Terminate()
	c.Kubectl("delete", "node", "agent-2")
	wantRestored(c, before)
	c.WantSameContainers(containers)

	// This restores on a new disk, from S3, with the token that somebody kept. Pods keep running.
	token := server.Token()
	server.Terminate()
	run(t, host, "mv", serverDir, "/var/lib/kedge/lost")
	host.WriteFile("/etc/kedge/config.yaml", "s3-access-key: user\ns3-secret-key: secret"+s3Config)
	refused(c, []string{"this host has no token", "--token"}, "restore", name)
	refused(c, []string{"cannot be decrypted with this token", "--token"}, "restore", "--token=wrong", name)
	refused(c, []string{"s3://backups", "list"}, "restore", "--token="+token, "none-server-1-1")
	must(c, "restore", "--token="+token, name)
	start(c)
	agent.WaitReady()
	wantRestored(c, before)
	c.WantSameContainers(containers)
	sees("the same on a new disk", map[string]string{"deleted": "before", "changed": "before", "new": ""})
	if got := server.Token(); got != token {
		t.Errorf("the token is %s, was %s", got, token)
	}
}

// wantObjects checks that the API has exactly the SnapshotFiles of these locations, and that they
// are complete.
func wantObjects(c *cluster.Cluster, locations ...string) {
	c.Helper()
	slices.Sort(locations)
	c.Eventually("the SnapshotFiles to be up to date", func() error {
		output, err := c.TryKubectl("", "get", "snapshotfiles", "-o", `jsonpath={range .items[?(@.status.readyToUse==true)]}{.spec.location}{"\n"}{end}`)
		if err != nil {
			return err
		}
		if got := slices.Sorted(slices.Values(strings.Fields(output))); !slices.Equal(got, locations) {
			return fmt.Errorf("they are %q, want %q", got, locations)
		}
		return nil
	})
}

// wantEvent checks that the node has an Event.
func wantEvent(c *cluster.Cluster, reason, text string) {
	c.Helper()
	c.Eventually("an event "+reason, func() error {
		output, err := c.TryKubectl("", "get", "events", "--field-selector=involvedObject.kind=Node,reason="+reason, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(output, text) {
			err = fmt.Errorf("there is %q, which lacks %q", output, text)
		}
		return err
	})
}

// wantGone checks that nobody can watch from a revision.
func wantGone(c *cluster.Cluster, revision string) {
	c.Helper()
	watched, err := c.Client.CoreV1().ConfigMaps(cluster.Namespace).Watch(c.Context(), metav1.ListOptions{ResourceVersion: revision})
	if err == nil {
		defer watched.Stop()
		event := <-watched.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		c.Errorf("a watch from revision %s, which is older than the restore: got %v, want that it has expired", revision, err)
	}
}

// wantRestored checks that the cluster is as it was saved, and that controllers continue to work.
func wantRestored(c *cluster.Cluster, before string) {
	c.Helper()
	c.Eventually("objects to be as they were", func() error {
		if after := c.Objects(); after != before {
			return fmt.Errorf("they are\n%s\nand were\n%s", after, before)
		}
		return nil
	})
	c.Kubectl("rollout", "status", "deployment/many", "--timeout="+cluster.Patience.String())
	c.Scale("many", 3)
	// The proxies and the DNS of nodes use these.
	c.WaitNode("agent-1", corev1.ConditionTrue)
	for _, from := range []string{"web", "there"} {
		c.Answers(from, "http://web.default.svc.cluster.local/", "web", "there")
	}
	c.Kubectl("scale", "deployment", "many", "--replicas=2")
	c.Eventually("the third pod to go", func() error {
		if pods := len(c.Containers()); pods != 4 {
			return fmt.Errorf("%d containers run", pods)
		}
		return nil
	})
}

// refusals checks that snapshots which were changed, or are not for this server, are refused.
// Nothing may be left of the attempts.
func refusals(c *cluster.Cluster, name string) {
	c.Helper()
	whole, err := os.ReadFile(c.Server.Host.Path(folder + "/" + name))
	if err != nil {
		c.Fatal(err)
	}
	database, err := os.ReadFile(c.Server.Host.Path(serverDir + "/db/state.db"))
	if err != nil {
		c.Fatal(err)
	}
	manifest := slices.Clone(whole)
	manifest[300] ^= 1
	for _, test := range []struct {
		name    string
		content []byte
		want    string
	}{
		{"some bits are others", cluster.Flipped(whole), "damaged"},
		{"a bit of the manifest is another", manifest, "its checksum does not match"},
		{"the end is missing", whole[:len(whole)*2/3], "is cut off"},
		{"nearly all is missing", whole[:20], "damaged"},
		{"something else", bytes.Repeat([]byte("no snapshot "), 100), "is not a snapshot of kedge"},
		{"of a newer kedge", c.With(whole, "kedge", "v1.99.0+kedge.1"), "newer than this one"},
		{"of a newer format", c.With(whole, "format", 99), "newer than this one"},
		{"of another datastore", c.With(whole, "datastore", "etcd"), "of the kind etcd"},
	} {
		c.Log(test.name)
		c.Server.Host.WriteFile(cluster.Attempt, string(test.content))
		refused(c, []string{test.want}, "restore", cluster.Attempt)
	}
	refused(c, []string{"there is no snapshot", "kedge snapshot list"}, "restore", "none")
	refused(c, []string{"kedge is not running on this host", "systemctl start kedge"}, "save")
	after, err := os.ReadFile(c.Server.Host.Path(serverDir + "/db/state.db"))
	if err != nil || !bytes.Equal(after, database) {
		c.Errorf("the database was changed by attempts to restore: %v", err)
	}
	left, _ := filepath.Glob(c.Server.Host.Path(serverDir + "/re*"))
	if len(left) > 0 {
		c.Errorf("attempts left %q", left)
	}
}

func run(t *testing.T, host *harness.Host, command string, args ...string) {
	t.Helper()
	if output, err := host.Command(context.Background(), command, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, output)
	}
}

// TestScheduleAndRetention saves every second and keeps two snapshots. Snapshots that were saved by
// hand stay until they are pruned or deleted.
func TestScheduleAndRetention(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	host.WriteFile(folder+"/.scheduled-server-1-1.zst.content.tmp", "left by a kill")
	server := host.StartServer(t, "--snapshot-schedule-cron=@every 1s", "--snapshot-retention=2")
	server.WaitReady()
	c := cluster.Of(t, server)
	hand := save(c, "by-hand")
	first := scheduled(c)
	c.Eventually("all first snapshots to be replaced", func() error {
		now := scheduled(c)
		if len(now) > 3 || slices.ContainsFunc(now, func(name string) bool { return slices.Contains(first, name) }) {
			return fmt.Errorf("there are %q", now)
		}
		return nil
	})
	server.Terminate()
	server = host.StartServer(t, "--disable-snapshots")
	server.WaitReady()
	c = cluster.Of(t, server)
	if _, err := os.Stat(host.Path(folder + "/.scheduled-server-1-1.zst.content.tmp")); err == nil {
		t.Error("the remains of an interrupted save still exist")
	}
	kept := scheduled(c)
	var locations []string
	for _, name := range append(kept, hand) {
		locations = append(locations, "file://"+folder+"/"+name)
	}
	wantObjects(c, locations...)

	again := save(c, "by-hand")
	if output := must(c, "prune", "--snapshot-retention=1"); !strings.Contains(output, hand) || strings.Contains(output, again) {
		t.Errorf("pruned %q", output)
	}
	must(c, "delete", again, scheduled(c)[0])
	refused(c, []string{"there is no snapshot", "list"}, "delete", again)
	refused(c, []string{"lower-case"}, "save", "--name=Not/A Name")
	refused(c, []string{"keeps no snapshot"}, "prune", "--snapshot-retention=0")
	wantObjects(c)
	for _, format := range []string{"table", "json", "yaml"} {
		if output := must(c, "list", "-o", format); strings.Contains(output, again) {
			t.Errorf("list shows %s", output)
		}
	}
	// S3 cannot be reached: the snapshot stays on this host, and the output says so.
	server.Terminate()
	server = host.StartServer(t, "--s3", "--s3-endpoint=127.0.0.1:1", "--s3-insecure", "--s3-bucket=none", "--s3-access-key=a", "--s3-secret-key=b")
	server.WaitReady()
	c = cluster.Of(t, server)
	refused(c, []string{"is saved on this host, but could not be sent to S3", "check s3-endpoint"}, "save")
	wantEvent(c, "SnapshotFailed", "check s3-endpoint")
	c.Eventually("a SnapshotFile with the error", func() error {
		output, err := c.TryKubectl("", "get", "snapshotfiles", "-o", `jsonpath={range .items[*]}{.spec.location} {.status.error.message}{"\n"}{end}`)
		if err == nil && (!strings.Contains(output, "s3://none/") || !strings.Contains(output, "check s3-endpoint")) {
			err = errors.New(output)
		}
		return err
	})
}

// scheduled returns the names of the snapshots that were saved by the schedule, the newest first.
func scheduled(c *cluster.Cluster) (names []string) {
	c.Helper()
	c.Eventually("snapshots by schedule", func() error {
		names = nil
		var files []struct{ Name, Location string }
		if err := json.Unmarshal([]byte(must(c, "list", "-o", "json")), &files); err != nil {
			return err
		}
		for _, f := range files {
			if strings.HasPrefix(f.Name, "scheduled-server-1-") {
				names = append(names, f.Name)
			}
		}
		if len(names) == 0 {
			return errors.New("there are none")
		}
		return nil
	})
	return names
}

// TestInterruptedRestore kills restores at random moments. After each kill the server must have
// either the old data or the snapshot's, and say which.
func TestInterruptedRestore(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	server := host.StartServer(t)
	server.WaitReady()
	c := cluster.Of(t, server)
	c.Kubectl("create", "configmap", "is", "--from-literal=value=snapshot")
	name := save(c, "x")
	c.Kubectl("patch", "configmap", "is", "--patch", `{"data": {"value": "old"}}`)
	server.Terminate()
	run(t, host, "cp", "-a", serverDir, "/var/lib/kedge/before")
	began := time.Now()
	must(c, "restore", name)
	took := time.Since(began)

	outcomes := map[string]int{}
	for range 20 {
		run(t, host, "sh", "-c", "rm -rf "+serverDir+"; cp -a /var/lib/kedge/before "+serverDir)
		restore := host.Kedge(context.Background(), "snapshot", "restore", name)
		if err := restore.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = restore.Wait(); close(ended) }()
		// A start takes longer than a restore.
		for begun := false; !begun; {
			select {
			case <-ended:
				begun = true
			default:
				_, err := os.Stat(host.Path(serverDir + "/restore.json"))
				begun = err == nil
			}
		}
		time.Sleep(rand.N(took / 2))
		_ = restore.Process.Kill()
		<-ended
		// This restore does nothing except look at what is there.
		output, err := kedge(c, "restore", "none")
		if err == nil {
			t.Fatal("restored nothing")
		}
		kept, _ := filepath.Glob(host.Path(serverDir + "/replaced-*/db/state.db"))
		state := "not begun"
		switch {
		case strings.Contains(output, "before it changed anything"):
			state = "old"
		case strings.Contains(output, "has been completed"):
			state = "snapshot"
		case len(kept) > 0:
			state = "done"
		}
		outcomes[state]++
		if left, _ := filepath.Glob(host.Path(serverDir + "/rest*")); len(left) > 0 {
			t.Errorf("left %q", left)
		}
		_, err = os.Stat(host.Path(serverDir + "/db/state.db"))
		if isNew := state == "snapshot" || state == "done"; err != nil || isNew != (len(kept) == 1) {
			t.Errorf("%s: %v, and kept are %q", state, err, kept)
		}
	}
	t.Log(outcomes)

	// A start completes an interrupted restore, too.
	run(t, host, "sh", "-c", "rm -rf "+serverDir+"; cp -a /var/lib/kedge/before "+serverDir)
	must(c, "restore", name)
	run(t, host, "sh", "-e", "-c", `cd `+serverDir+`; mkdir restoring; mv db restoring/; mv replaced-*/db .; rmdir replaced-*
echo '{"state": "committed", "snapshot": "x", "datastore": "sqlite", "began": 1}' >restore.json`)
	start(c)
	c.Server.WaitLog("has been completed")
	if got := c.Kubectl("get", "configmap", "is", "-o", "jsonpath={.data.value}"); got != "snapshot" {
		t.Errorf("the data are the %s", got)
	}
}
