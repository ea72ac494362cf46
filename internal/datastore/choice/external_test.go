package choice

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

func TestNewExternal(t *testing.T) {
	for endpoint, want := range map[string]string{
		"postgres://u:p@192.0.2.1/x":                    "*sqldb.Datastore unix:///run/kedge/datastore.sock",
		"mysql://u:p@tcp(192.0.2.1)/x":                  "*sqldb.Datastore unix:///run/kedge/datastore.sock",
		"https://192.0.2.1:2379,https://192.0.2.2:2379": "*etcdremote.Datastore https://192.0.2.1:2379,https://192.0.2.2:2379",
	} {
		store, err := NewExternal(config.Datastore{Endpoint: endpoint})
		if err != nil {
			t.Errorf("make the datastore of %s: %v", endpoint, err)
			continue
		}
		if got := fmt.Sprintf("%T %s", store, store.Endpoint().URL); got != want || !store.Endpoint().Shared {
			t.Errorf("%s: %s, want %s, shared", endpoint, got, want)
		}
	}
	if _, err := NewExternal(config.Datastore{Endpoint: "postgres://u:p@192.0.2.1/x", CAFile: "/none"}); err == nil {
		t.Error("a missing file was taken")
	}
}

// A server refuses to leave its state behind for a database.
func TestStateIsNotLeft(t *testing.T) {
	cfg, dir := config.Default(), datadir.Dir(t.TempDir())
	cfg.Server.Datastore.Endpoint, cfg.DataDir = "postgres://u:p@192.0.2.1/x", string(dir)
	if err := Of(cfg).checkState(false); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(dir.ServerDB(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir.SQLite(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Of(cfg).checkState(false); err == nil || !strings.Contains(err.Error(), "remove datastore-endpoint") {
		t.Errorf("with state in SQLite: got error %v, want one that says to remove datastore-endpoint", err)
	}
}
