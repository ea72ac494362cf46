package sqldb

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"

	"github.com/kedge-dev/kedge/internal/datastore"
)

// nobody is the user for the databases, which refuse to run as root.
const nobody = 65534

// instance is a database server that a test runs, on a unix socket.
type instance struct {
	t       *testing.T
	folder  string
	command []string
	process *exec.Cmd
	// endpoint returns the endpoint of the database with the given name.
	endpoint func(name string) string
}

// eachDatabase runs a test with every kind of database that is installed.
func eachDatabase(t *testing.T, test func(*testing.T, *instance)) {
	t.Run("PostgreSQL", func(t *testing.T) { test(t, newPostgres(t)) })
	t.Run("MariaDB", func(t *testing.T) { test(t, newMariaDB(t)) })
}

func newInstance(t *testing.T) *instance {
	t.Helper()
	folder, err := os.MkdirTemp("", "db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if os.Getuid() == 0 {
		if err := os.Chown(folder, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return &instance{t: t, folder: folder}
}

func newPostgres(t *testing.T) *instance {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("PostgreSQL is not installed: see scripts/need.sh postgresql")
	}
	i := newInstance(t)
	data := filepath.Join(i.folder, "data")
	i.run(filepath.Join(filepath.Dir(found[0]), "initdb"), "--no-sync", "--auth=trust", "--username=root", "-D", data)
	i.command = []string{found[0], "-D", data, "-k", i.folder, "-h", "", "-F"}
	i.endpoint = func(name string) string { return "postgres://root@/" + name + "?host=" + i.folder }
	i.start()
	return i
}

func newMariaDB(t *testing.T) *instance {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/mariadbd"); err != nil {
		t.Skip("MariaDB is not installed: see scripts/need.sh mariadb-server-core")
	}
	i := newInstance(t)
	data, socket := filepath.Join(i.folder, "data"), filepath.Join(i.folder, "socket")
	i.run("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	i.command = []string{"/usr/sbin/mariadbd", "--no-defaults", "--datadir=" + data, "--socket=" + socket, "--skip-networking"}
	i.endpoint = func(name string) string { return "mysql://root@unix(" + socket + ")/" + name }
	i.start()
	return i
}

// as makes the command run as a user who may run a database.
func as(command *exec.Cmd) *exec.Cmd {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	command.Dir = "/"
	return command
}

func (i *instance) run(name string, args ...string) {
	i.t.Helper()
	if output, err := as(exec.Command(name, args...)).CombinedOutput(); err != nil {
		i.t.Fatalf("%s: %v\n%s", name, err, output)
	}
}

// start starts the server, and does not wait until it is ready.
func (i *instance) start() {
	i.t.Helper()
	i.process = as(exec.Command(i.command[0], i.command[1:]...))
	if err := i.process.Start(); err != nil {
		i.t.Fatal(err)
	}
	process := i.process
	i.t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
}

// stop stops the server at once, even if clients are connected.
func (i *instance) stop() {
	_ = i.process.Process.Signal(syscall.SIGQUIT)
	if !strings.Contains(i.command[0], "postgres") {
		_ = i.process.Process.Kill()
	}
	_ = i.process.Wait()
}

// running is a datastore in this process.
type running struct {
	*Datastore
	local  *kubernetes.Client
	remote *clientv3.Client
	stop   func()
}

// run starts a datastore and waits until it is ready.
func run(t *testing.T, endpoint string) *running {
	t.Helper()
	folder, err := os.MkdirTemp("", "db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	d, err := New(Config{Endpoint: endpoint, Socket: filepath.Join(folder, "socket")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		cancel()
		t.Fatalf("the datastore ended before it was ready: %v", err)
	case <-time.After(2 * time.Minute):
		cancel()
		t.Fatal("the datastore is not ready in time")
	}
	r := &running{Datastore: d, local: d.Endpoint().NewClient()}
	if r.remote, err = clientv3.New(clientv3.Config{Endpoints: []string{d.Endpoint().URL}, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		r.local.Close()
		r.remote.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("a stop returned %v", err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// fails runs a datastore that must end with an error.
func fails(t *testing.T, endpoint string, files datastore.TLS) error {
	t.Helper()
	d, err := New(Config{Endpoint: endpoint, TLS: files, Socket: filepath.Join(t.TempDir(), "socket")})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = d.Run(ctx, func() { t.Error("ready") })
	if err == nil {
		t.Error("got no error")
	}
	return err
}
