package choice

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/datastore/etcd"
)

// Each datastore is restored in its own way, or the error says who saves it.
func TestStored(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*config.Config)
		// kind is that of the datastore. others is a part of what to do on other
		// servers.
		kind, others string
		// elsewhere is a part of the reason why nothing is saved.
		elsewhere string
	}{
		"SQLite":            {kind: "sqlite"},
		"PostgreSQL":        {change: func(c *config.Config) { c.Server.Datastore.Endpoint = "postgres://u:p@192.0.2.1/x" }, kind: "sql", others: "start them after this one"},
		"MySQL":             {change: func(c *config.Config) { c.Server.Datastore.Endpoint = "mysql://u:p@tcp(192.0.2.1)/x" }, kind: "sql", others: "start them after this one"},
		"an etcd of theirs": {change: func(c *config.Config) { c.Server.Datastore.Endpoint = "https://192.0.2.1:2379" }, elsewhere: "etcdctl snapshot save"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			if test.change != nil {
				test.change(cfg)
			}
			cfg.DataDir = t.TempDir()
			store, others, err := Of(cfg).stored(nil)
			if err != nil {
				t.Fatal(err)
			}
			if store != nil && store.Kind() != test.kind || store == nil && test.kind != "" {
				t.Errorf("the datastore is %v", store)
			}
			elsewhere := Of(cfg).checkSaved()
			if store != nil && !strings.Contains(others, test.others) || (elsewhere == nil) != (test.elsewhere == "") {
				t.Errorf("others: %q, elsewhere: %v", others, elsewhere)
			}
			if elsewhere != nil && !strings.Contains(elsewhere.Error(), test.elsewhere) {
				t.Error(elsewhere)
			}
		})
	}
}

// A restore that was interrupted may have moved etcd's data away. The server
// still counts as one with etcd, so that the restore is completed.
func TestInterruptedRestoreOfEtcd(t *testing.T) {
	cfg, dir := config.Default(), datadir.Dir(t.TempDir())
	cfg.DataDir = string(dir)
	if Of(cfg).UsesEtcd() {
		t.Error("uses etcd before there is any")
	}
	log := filepath.Join(etcd.Prepared(dir.Restoring()), "member", "wal", "0.wal")
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !Of(cfg).UsesEtcd() {
		t.Error("forgets etcd")
	}
}
