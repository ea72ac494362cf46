package robustness

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/slowfs"
	"github.com/kedge-dev/kedge/tests/harness/store"
	"github.com/kedge-dev/kedge/tests/robustness/served"
)

const (
	databaseFolder = "/var/lib/kedge/server/db"
	socket         = "/run/kedge/datastore.sock"
)

// process is a datastore that package served runs on a host.
type process struct {
	t    *testing.T
	host *harness.Host
	args []string
	log  string
	cmd  *harness.Cmd
	// exited is closed when the process has ended.
	exited chan struct{}
	// starts counts the starts.
	starts int
}

func newProcess(t *testing.T, host *harness.Host, args ...string) *process {
	t.Helper()
	p := &process{
		t: t, host: host, log: filepath.Join(host.Scratch("datastore"), "log"),
		args: append([]string{served.Argument, "-folder", databaseFolder, "-socket", socket}, args...),
	}
	t.Cleanup(func() {
		if text, _ := os.ReadFile(p.log); t.Failed() {
			t.Logf("the end of the log of the datastore on %s:\n%s", host.Name, tail(string(text)))
		}
	})
	return p
}

// start starts the datastore and waits until it is ready.
func (p *process) start() {
	p.t.Helper()
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.cmd, p.exited = p.host.Command(p.t.Context(), program, p.args...), make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.starts++
	go func(cmd *harness.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(p.cmd, p.exited)
	harness.Eventually(p.t, patience, "the datastore on "+p.host.Name, func() error {
		text, err := os.ReadFile(p.log)
		if err == nil && strings.Count(string(text), served.Ready) < p.starts {
			err = fmt.Errorf("it is not ready")
		}
		return err
	})
}

// signal sends a signal. A process that has ended gets none.
func (p *process) signal(signal os.Signal) { _ = p.cmd.Process.Signal(signal) }

// end ends the datastore with a signal.
func (p *process) end(signal os.Signal) {
	p.signal(signal)
	<-p.exited
}

func (p *process) ended() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// waitAnswer waits until the datastore answers, so that a fault does not begin before the one before
// is over.
func (p *process) waitAnswer() {
	p.t.Helper()
	client := connect(p.t, p.host)
	defer client.Close()
	harness.Eventually(p.t, patience, "the datastore on "+p.host.Name+" to answer", func() error {
		ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Second)
		defer cancel()
		_, err := client.Client.Get(ctx, "any")
		return err
	})
}

// pause stops the process for a while.
func (p *process) pause(random *rand.Rand) {
	p.signal(unix.SIGSTOP)
	time.Sleep(between(random, 200*time.Millisecond, 3*time.Second))
	p.signal(unix.SIGCONT)
}

// links are the faults of a host's link.
func links(host *harness.Host) []nemesis {
	during := func(begin, end func()) func(*rand.Rand) {
		return func(random *rand.Rand) {
			begin()
			time.Sleep(between(random, 200*time.Millisecond, 3*time.Second))
			end()
		}
	}
	return []nemesis{
		{"the link of " + host.Name + " is cut", during(host.CutLink, host.HealLink)},
		{host.Name + " is not heard", during(host.CutLinkFrom, host.HealLink)},
		{host.Name + " hears nothing", during(host.CutLinkTo, host.HealLink)},
		{host.Name + " loses packets", during(func() { host.LosePackets(20) }, func() { host.LosePackets(0) })},
	}
}

// addresses returns the endpoints of datastores that package served runs on hosts.
func addresses(hosts ...*harness.Host) (all []string) {
	for _, host := range hosts {
		for _, port := range []string{served.SocketPort, served.ProcessPort} {
			all = append(all, "http://"+host.Address.String()+":"+port)
		}
	}
	return all
}

// sqliteTarget is a server's SQLite, on a disk of its own.
type sqliteTarget struct {
	*process
	disk *slowfs.Disk
	rows string
}

func newSQLite(t *testing.T, args ...string) (*target, *sqliteTarget) {
	t.Helper()
	network := harness.NewNetwork(t)
	server, client := network.NewHost(t, "server"), network.NewHost(t, "client")
	s := newSQLiteOn(t, server, args...)
	on := &target{endpoints: addresses(server), client: client, rows: s.rows, revive: s.revive}
	on.nemeses = append(links(client),
		nemesis{"kill -9", func(*rand.Rand) { s.end(unix.SIGKILL) }},
		nemesis{"an orderly restart", func(*rand.Rand) { s.end(unix.SIGTERM) }},
		nemesis{"a pause", s.pause},
		nemesis{"a power cut", s.cutPower},
		nemesis{"a slow disk", func(random *rand.Rand) {
			s.disk.SetLimits(slowfs.SDCard)
			time.Sleep(between(random, time.Second, 4*time.Second))
			s.disk.SetLimits(slowfs.Limits{})
		}},
		nemesis{"a disk that does not answer", func(random *rand.Rand) {
			s.disk.Stall()
			time.Sleep(between(random, 200*time.Millisecond, 3*time.Second))
			s.disk.Resume()
		}},
		nemesis{"a full disk", func(random *rand.Rand) {
			s.disk.Refuse(unix.ENOSPC)
			time.Sleep(between(random, 200*time.Millisecond, 2*time.Second))
			s.disk.Refuse(0)
		}},
	)
	return on, s
}

// forget kills the datastore, and puts its files back as they were some time before. No disk may do that.
func (s *sqliteTarget) forget(random *rand.Rand) {
	s.t.Helper()
	folder, kept := s.host.Path(databaseFolder), s.t.TempDir()
	s.signal(unix.SIGSTOP)
	s.copyDatabase(folder, kept)
	s.signal(unix.SIGCONT)
	time.Sleep(between(random, time.Second, 2*time.Second))
	s.end(unix.SIGKILL)
	s.copyDatabase(kept, folder)
}

// copyDatabase copies the database and its log.
func (s *sqliteTarget) copyDatabase(from, to string) {
	s.t.Helper()
	for _, name := range []string{"state.db", "state.db-wal"} {
		if err := harness.CopyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil && !os.IsNotExist(err) {
			s.t.Fatalf("copy the database: %v", err)
		}
	}
}

// newSQLiteOn starts SQLite's datastore on a host, with a disk of its own.
func newSQLiteOn(t *testing.T, server *harness.Host, args ...string) *sqliteTarget {
	t.Helper()
	s := &sqliteTarget{disk: slowfs.Mount(t, server, databaseFolder, slowfs.Limits{}), rows: filepath.Join(t.TempDir(), "rows.json")}
	t.Cleanup(s.disk.Resume)
	s.process = newProcess(t, server, args...)
	s.start()
	return s
}

// cutPower cuts the power of the server and its disk.
func (s *sqliteTarget) cutPower(*rand.Rand) {
	s.t.Helper()
	if err := s.disk.Cut(); err != nil {
		s.t.Fatal(err)
	}
	s.end(unix.SIGKILL)
	s.disk.PowerOn()
}

// revive starts the datastore again, if it has ended.
func (s *sqliteTarget) revive() {
	s.t.Helper()
	if s.ended() {
		if err := s.saveRows(); err != nil {
			s.t.Fatalf("read the rows of the database: %v", err)
		}
		s.start()
	}
	s.waitAnswer()
}

// saveRows adds all rows of a database that nobody uses to the file for the judge. It reads a copy,
// because SQLite would write the log of a crash into the database.
func (s *sqliteTarget) saveRows() error {
	folder := s.t.TempDir()
	s.copyDatabase(s.host.Path(databaseFolder), folder)
	db, err := sql.Open("sqlite3", filepath.Join(folder, "state.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	file, err := os.OpenFile(s.rows, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	// Between what is swept and what is reserved, the database has all that has happened.
	var span struct{ Swept, Reserved sql.NullInt64 }
	err = db.QueryRow(`SELECT (SELECT MAX(prev_revision) FROM kine WHERE name = 'compact_rev_key'),
		(SELECT seq FROM sqlite_sequence WHERE name = 'kine')`).Scan(&span.Swept, &span.Reserved)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(file)
	if err := encoder.Encode(map[string]int64{"from": span.Swept.Int64 + 1, "to": span.Reserved.Int64}); err != nil {
		return err
	}
	found, err := db.Query("SELECT id, name, deleted, value FROM kine WHERE name LIKE '/registry/pods/%' ORDER BY id")
	if err != nil {
		return err
	}
	defer found.Close()
	for found.Next() {
		var row struct {
			Revision int64
			Key      string
			Value    string
			Deleted  bool
		}
		var value []byte
		if err := found.Scan(&row.Revision, &row.Key, &row.Deleted, &value); err != nil {
			return err
		}
		row.Value = string(value)
		if err := encoder.Encode(row); err != nil {
			return err
		}
	}
	return found.Err()
}

// newShared is two servers that share a database.
func newShared(t *testing.T, make func(*testing.T, *harness.Network) *store.Store) *target {
	t.Helper()
	network := harness.NewNetwork(t)
	database := make(t, network)
	database.Start()
	client := network.NewHost(t, "client")
	on := &target{client: client, nemeses: links(client)}
	var servers []*process
	for _, name := range []string{"server-1", "server-2"} {
		host := network.NewHost(t, name)
		args := []string{"-endpoint", database.Endpoint}
		for _, setting := range database.Files(host) {
			args = append(args, "-"+strings.TrimPrefix(setting, "--datastore-"))
		}
		server := newProcess(t, host, args...)
		server.start()
		servers = append(servers, server)
		on.endpoints = append(on.endpoints, addresses(host)...)
		on.nemeses = append(on.nemeses, links(host)...)
		on.nemeses = append(on.nemeses,
			nemesis{"kill -9 of " + name, func(*rand.Rand) { server.end(unix.SIGKILL) }},
			nemesis{"an orderly restart of " + name, func(*rand.Rand) { server.end(unix.SIGTERM) }},
			nemesis{"a pause of " + name, server.pause},
		)
	}
	on.nemeses = append(on.nemeses, links(database.Host)...)
	on.nemeses = append(on.nemeses, nemesis{"a crash of the database", func(random *rand.Rand) {
		database.Crash()
		time.Sleep(between(random, 0, 2*time.Second))
		database.Start()
	}})
	on.revive = func() {
		for _, server := range servers {
			if server.ended() {
				server.start()
			}
			server.waitAnswer()
		}
	}
	return on
}
