package choice

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

func TestCheckState(t *testing.T) {
	initialize := func(c *config.Config) { c.Server.ClusterInit = true }
	join := func(c *config.Config) { c.Agent.Server = "https://192.0.2.10:6443" }
	reset := func(c *config.Config) { c.Server.ClusterReset = true }
	etcdOnly := func(c *config.Config) { c.Server.DisableAPIServer = true }
	noEtcd := func(c *config.Config) { join(c); c.Server.DisableEtcd = true }
	noScheduler := func(c *config.Config) { c.Server.DisableScheduler = true }
	noneOfSeveral := func(c *config.Config) { initialize(c); noScheduler(c) }
	theirs := func(c *config.Config) { c.Server.Datastore.Endpoint = "postgres://db.example.com/kedge" }
	const (
		sqlite = "server/db/state.db"
		begun  = "server/tls/etcd/peer-ca.key"
		wal    = "server/db/etcd/member/wal/0.wal"
		marker = "server/datastore-endpoint"
	)
	for name, test := range map[string]struct {
		files  []string
		change func(*config.Config)
		etcd   bool
		// want is a part of the error.
		want string
	}{
		"new":                        {},
		"new, first of several":      {change: initialize, etcd: true},
		"new, joins":                 {change: join, etcd: true},
		"SQLite":                     {files: []string{sqlite}},
		"SQLite, to etcd":            {files: []string{sqlite}, change: initialize, etcd: true},
		"SQLite, to their own":       {files: []string{sqlite}, change: theirs, want: "kedge does not move it to datastore-endpoint"},
		"SQLite, reset":              {files: []string{sqlite}, change: reset, want: "cluster-reset needs embedded etcd"},
		"etcd":                       {files: []string{wal}, etcd: true},
		"etcd, to their own":         {files: []string{wal}, change: theirs, etcd: true, want: "kedge does not move it to datastore-endpoint"},
		"etcd, and an older SQLite":  {files: []string{wal, sqlite}, etcd: true},
		"etcd, flags as at first":    {files: []string{wal}, change: initialize, etcd: true},
		"etcd, reset":                {files: []string{wal}, change: reset, etcd: true},
		"their own":                  {files: []string{marker}, change: theirs},
		"their own, without it":      {files: []string{marker}, want: "set datastore-endpoint again"},
		"their own, to etcd":         {files: []string{marker}, change: initialize, etcd: true, want: "set datastore-endpoint again"},
		"their own, joins another":   {files: []string{marker}, change: join, etcd: true, want: "set datastore-endpoint again"},
		"has begun to join":          {files: []string{begun}, want: "belongs to a cluster of several servers"},
		"has begun to join, goes on": {files: []string{begun}, change: join, etcd: true},
		"SQLite, without API":        {files: []string{sqlite}, change: etcdOnly, want: "add --cluster-init if it is the first"},
		"new, without API":           {change: etcdOnly, want: "add --cluster-init if it is the first"},
		"etcd, without API":          {files: []string{wal}, change: etcdOnly, etcd: true},
		"new, without etcd":          {change: noEtcd, etcd: true},
		"SQLite, without etcd":       {files: []string{sqlite}, change: noEtcd, etcd: true, want: "would lose it with disable-etcd"},
		"etcd, without etcd":         {files: []string{wal}, change: noEtcd, etcd: true, want: "would lose it with disable-etcd"},
		"one without scheduler":      {change: noScheduler},
		"etcd, without scheduler":    {files: []string{wal}, change: noScheduler, etcd: true, want: "must both be set or both be unset"},
		"first, without scheduler":   {change: noneOfSeveral, etcd: true, want: "must both be set or both be unset"},
		"has begun to be the first":  {files: []string{begun}, change: initialize, etcd: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := datadir.Dir(t.TempDir())
			for _, file := range test.files {
				path := filepath.Join(string(dir), file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cfg := config.Default()
			if test.change != nil {
				test.change(cfg)
			}
			cfg.DataDir = string(dir)
			if got := Of(cfg).UsesEtcd(); got != test.etcd {
				t.Errorf("uses etcd: %t", got)
			}
			member := strings.Contains(strings.Join(test.files, " "), "wal")
			err := Of(cfg).checkState(member)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestWarnEmpty has the join token of a cluster, with its state and without. A first start,
// and a server whose state is elsewhere, warn of nothing.
func TestWarnEmpty(t *testing.T) {
	const token, sqlite, wal = "server/token", "server/db/state.db", "server/db/etcd/member/wal/0.wal"
	for name, test := range map[string]struct {
		files  []string
		change func(*config.Config)
		warns  bool
	}{
		"a first start":       {},
		"a later start":       {files: []string{token, sqlite}},
		"no database":         {files: []string{token}, warns: true},
		"no etcd":             {files: []string{token}, change: func(c *config.Config) { c.Server.ClusterInit = true }, warns: true},
		"etcd":                {files: []string{token, wal}},
		"joins another":       {files: []string{token}, change: func(c *config.Config) { c.Agent.Server = "https://192.0.2.10:6443" }},
		"a database of users": {files: []string{token}, change: func(c *config.Config) { c.Server.Datastore.Endpoint = "postgres://db.example.com/kedge" }},
	} {
		t.Run(name, func(t *testing.T) {
			hook := logtest.NewGlobal()
			defer hook.Reset()
			dir, cfg := t.TempDir(), config.Default()
			for _, file := range test.files {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if test.change != nil {
				test.change(cfg)
			}
			cfg.DataDir = dir
			Of(cfg).warnEmpty()
			warned := false
			for _, entry := range hook.AllEntries() {
				warned = warned || strings.Contains(entry.Message, "an empty cluster begins now")
			}
			if warned != test.warns {
				t.Errorf("it warns: %t", warned)
			}
		})
	}
}
