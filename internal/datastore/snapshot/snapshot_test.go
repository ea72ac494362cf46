package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/localapi/localtest"
	"github.com/kedge-dev/kedge/internal/cluster/join"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/testutil/s3"
)

// store is a datastore that consists of one text, in a file.
type store struct {
	dir    datadir.Dir
	last   int64
	broken error
	saves  atomic.Int32
	// above is the revision that Prepare got.
	above int64
}

func (s *store) Kind() string { return "text" }

func (s *store) Save(_ context.Context, file string) (int64, error) {
	s.saves.Add(1)
	if s.broken != nil {
		return 0, s.broken
	}
	text, err := os.ReadFile(filepath.Join(s.dir.ServerDB(), "text"))
	if err != nil {
		return 0, err
	}
	return s.last, os.WriteFile(file, text, 0o600)
}

func (s *store) Convert(ctx context.Context, export datastore.Export, file string) error {
	var text []byte
	if _, _, err := export(ctx, func(e *mvccpb.Event) error {
		text = append(text, e.Kv.Value...)
		return nil
	}); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

func (s *store) LastRevision(context.Context) (int64, error) { return s.last, s.broken }

func (s *store) Prepare(_ context.Context, file, folder string, above int64) error {
	s.above = above
	if err := os.Mkdir(filepath.Join(folder, "db"), 0o700); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "db", "text"), text, 0o600)
}

func (s *store) Commit(_ context.Context, folder, kept string) error {
	return datadir.Replace(filepath.Join(folder, "db"), s.dir.ServerDB(), filepath.Join(kept, "db"))
}

func (s *store) Kept(kept string) string { return kept }

// server makes a server's data directory, and the configuration of its snapshots.
func server(t *testing.T, text, token string) Config {
	t.Helper()
	dir := datadir.Dir(t.TempDir())
	for _, folder := range []string{dir.ServerDB(), dir.ServerTLS(), dir.AgentTLS()} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	certificates, err := pki.EnsureServer(pki.ServerOptions{Dir: dir, NodeName: "pi", ClusterDomain: "cluster.local", Clock: pki.NewClock(dir.ClockFile())})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := join.EnsureToken(dir, token, certificates.ServerCA()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir.ServerDB(), "text"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Config{
		Dir: dir, Settings: config.Default().Server.Snapshots, NodeName: "pi",
		Store: &store{dir: dir, last: 42},
	}
}

// quick returns a Snapshots that seals secrets without delay.
func quick(cfg Config) *Snapshots {
	s := New(cfg)
	return s
}

// withAPI gives s an API with SnapshotFiles.
func withAPI(s *Snapshots, objects ...runtime.Object) {
	s.client = fake.NewClientset(objects...)
	s.objects = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{resourceOf: "SnapshotFileList"}).Resource(resourceOf)
}

// shown returns the locations of the SnapshotFiles in the API, with their errors.
func shown(t *testing.T, s *Snapshots) (locations []string) {
	t.Helper()
	if err := s.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := s.objects.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range list.Items {
		var o struct {
			Spec   struct{ Location string }
			Status struct{ Error struct{ Message string } }
		}
		text, _ := json.Marshal(object.Object)
		if err := json.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		locations = append(locations, strings.TrimSpace(o.Spec.Location+" "+o.Status.Error.Message))
	}
	slices.Sort(locations)
	return locations
}

func TestCommands(t *testing.T) {
	bucket := &s3.Server{Bucket: "backups", AccessKey: "user"}
	remote := httptest.NewServer(bucket)
	defer remote.Close()
	cfg := server(t, "all", "token")
	cfg.Settings.S3 = true
	cfg.Settings.S3Settings = config.S3{
		Endpoint: "none", Folder: "/a/", ConfigSecret: "s3", Region: "us-east-1",
	}
	s := quick(cfg)
	withAPI(s, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "s3"}, Data: map[string][]byte{
		"s3-endpoint": []byte(strings.TrimPrefix(remote.URL, "http://") + "\n"), "s3-insecure": []byte("true"),
		"s3-bucket": []byte("backups"), "s3-access-key": []byte("user"), "s3-secret-key": []byte("secret"),
	}})
	ctx, stop := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, func() { close(ready) }) }()
	<-ready
	kedge := localtest.Serve(t, s.Routes()...)
	names := func(files []File, err error) []string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range files {
			place, _, _ := strings.Cut(f.Location, ":")
			all = append(all, place+" "+f.Name)
		}
		return all
	}
	var saved []string
	for range 3 {
		saved = append(saved, strings.TrimPrefix(names(AskSave(t.Context(), kedge, OnDemand))[0], "file "))
	}
	if listed := names(AskList(t.Context(), kedge)); len(listed) != 6 || listed[0] != "file "+saved[2] || listed[1] != "s3 "+saved[2] {
		t.Errorf("got list %q, want 6 entries that begin with %s here and in S3", listed, saved[2])
	}
	if keys := bucket.Keys(); !slices.Equal(keys, []string{"a/" + saved[0], "a/" + saved[1], "a/" + saved[2]}) {
		t.Errorf("got keys %q in S3, want those of three snapshots", keys)
	}
	if pruned := names(AskPrune(t.Context(), kedge, "", 2)); len(pruned) != 2 {
		t.Errorf("got pruned snapshots %q, want two", pruned)
	}
	names(AskDelete(t.Context(), kedge, []string{strings.TrimSuffix(saved[1], ".zst")}))
	if listed := names(AskList(t.Context(), kedge)); !slices.Equal(listed, []string{"file " + saved[2], "s3 " + saved[2]}) {
		t.Errorf("got list %q, want the newest snapshot here and in S3", listed)
	}
	if got := shown(t, s); !slices.Equal(got, []string{"file://" + cfg.folder() + "/" + saved[2], "s3://backups/a/" + saved[2]}) {
		t.Errorf("got SnapshotFiles %q, want the newest snapshot here and in S3", got)
	}
	if _, err := AskDelete(t.Context(), kedge, []string{saved[2], saved[0]}); err == nil {
		t.Error("deleting a snapshot that does not exist returned no error")
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.folder(), "*")); len(left) != 1 {
		t.Errorf("one of two snapshots does not exist: want neither deleted, left are %q", left)
	}
	events, err := s.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) < 6 {
		t.Errorf("%d events, %v", len(events.Items), err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFailures(t *testing.T) {
	cfg := server(t, "all", "token")
	s := quick(cfg)
	withAPI(s)
	cfg.Store.(*store).broken = errors.New("disk on fire")
	if _, err := s.save(t.Context(), OnDemand); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("got %v", err)
	}
	if left, _ := os.ReadDir(cfg.folder()); len(left) > 0 {
		t.Errorf("got files %v in the folder, want none", left)
	}
	if got := shown(t, s); len(got) != 1 || !strings.HasSuffix(got[0], "disk on fire") {
		t.Errorf("the API shows %q", got)
	}
	cfg.Store.(*store).broken = nil
	file, err := s.save(t.Context(), OnDemand)
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(t, s); !slices.Equal(got, []string{file.Location}) {
		t.Errorf("the API shows %q", got)
	}
	// While S3 does not answer, its SnapshotFiles stay.
	s.cfg.Settings.S3, s.cfg.Settings.S3Settings = true, config.S3{Endpoint: "127.0.0.1:1", Insecure: true, Bucket: "backups", AccessKey: "a", SecretKey: "s", Region: "x"}
	if file, err := s.save(t.Context(), OnDemand); file == nil || err == nil || !strings.Contains(err.Error(), "check s3-endpoint") {
		t.Errorf("got %v, %v", file, err)
	}
	if got := shown(t, s); len(got) != 3 || !strings.Contains(got[2], "check s3-endpoint") {
		t.Errorf("the API shows %q", got)
	}
}

// TestSchedule wants nothing to happen except at the times of the schedule.
func TestSchedule(t *testing.T) {
	cfg := server(t, "all", "token")
	cfg.Settings.ScheduleCron = "0 */12 * * *"
	cfg.Settings.Retention = 3
	synctest.Test(t, func(t *testing.T) {
		s := quick(cfg)
		saves := &cfg.Store.(*store).saves
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.keepSchedule(ctx); close(done) }()
		time.Sleep(11 * time.Hour)
		synctest.Wait()
		if n := saves.Load(); n > 1 {
			t.Errorf("%d saves in 11 hours", n)
		}
		time.Sleep(5 * 24 * time.Hour)
		synctest.Wait()
		if n := saves.Load(); n < 10 || n > 11 {
			t.Errorf("%d saves in 5 days", n)
		}
		stop()
		<-done
	})
	files, err := cfg.listFolder()
	if err != nil || len(files) != 3 {
		t.Errorf("%d snapshots are left, %v", len(files), err)
	}
}
