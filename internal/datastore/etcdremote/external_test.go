package etcdremote

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/kedge-dev/kedge/internal/datastore"
	"github.com/kedge-dev/kedge/internal/testutil/etcd"
)

// The datastore waits for an etcd that starts late, and says what to check.
func TestWaitsForEtcd(t *testing.T) {
	hook := logtest.NewLocal(logrus.StandardLogger())
	defer hook.Reset()
	client := etcd.FreeURL(t)
	d, err := New(Config{Endpoints: client.String(), What: "etcd", Advice: "whether it runs"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- d.Run(ctx, func() { close(ready) }) }()
	said := func(text string) bool {
		for _, entry := range hook.AllEntries() {
			if strings.Contains(entry.Message, text) {
				return true
			}
		}
		return false
	}
	for !said("does not answer: check whether it runs") {
		time.Sleep(10 * time.Millisecond)
	}
	if health := d.Health(t.Context()); !strings.Contains(health.Fault, "does not answer: check whether it runs") || health.Etcd.Members[0].Answers {
		t.Errorf("before etcd runs: got health %+v, want that it does not answer", health)
	}
	etcd.StartAt(t, client)
	<-ready
	health := d.Health(t.Context())
	want := datastore.EtcdMember{Name: client.String(), Leader: true, Answers: true}
	if health.Fault != "" || len(health.Etcd.Members) != 1 || health.Etcd.Members[0] != want || health.Etcd.Term == 0 {
		t.Errorf("while it runs: got health %+v, want no fault and one member, the leader", health)
	}
	if stats := d.Stats(t.Context()); stats.Kind != "external-etcd" || stats.Place != "etcd" {
		t.Errorf("got stats %+v, want the kind external-etcd and the place etcd", stats)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStopsWhileWaiting(t *testing.T) {
	address := etcd.FreeURL(t)
	d, err := New(Config{Endpoints: address.String(), What: "etcd", Advice: "whether it runs"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := d.Run(ctx, func() { t.Error("ready") }); err != nil {
		t.Error(err)
	}
}

func TestFiles(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, files := range map[string]datastore.TLS{
		"datastore-cafile: stat /none":               {CAFile: "/none"},
		"has no certificate in PEM":                  {CAFile: garbage},
		"only one of datastore-certfile":             {KeyFile: garbage},
		"datastore-certfile and datastore-keyfile: ": {CertFile: garbage, KeyFile: garbage},
	} {
		if _, err := New(Config{Endpoints: "https://192.0.2.1:2379", Files: files}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", files, err, want)
		}
	}
}
