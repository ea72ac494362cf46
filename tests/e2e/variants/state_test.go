package variants

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3

	"github.com/kedge-dev/kedge/tests/harness"
)

// TestDataDirectory keeps the state in another folder, damages what is unpacked there, moves the
// folder, gives settings that only the first start can choose other values, puts an unusable database
// into the folder, and removes the database.
func TestDataDirectory(t *testing.T) {
	t.Parallel()
	host := newHost(t)
	run(t, host, "sh", "-c", "mkdir -p /var/lib/kedge/one/agent && mv /var/lib/kedge/agent/images /var/lib/kedge/one/agent/")
	c := start(t, host, "--data-dir=/var/lib/kedge/one")
	c.works()
	uid := c.kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
	c.server.Terminate()

	// This is the state after an interrupted unpacking, and after a user who deletes files.
	damage := `
cd /var/lib/kedge/one/assets
digest=$(ls -d [0-9a-f]*)
truncate -s 1000 $digest/bin/runc
rm $digest/bin/bridge $digest/bin/nft $digest/images/pause.tar
mkdir .tmp-123456
echo half >.tmp-123456/runc
`
	run(t, host, "sh", "-e", "-c", damage)
	c = start(t, host, "--data-dir=/var/lib/kedge/one")
	c.works()
	c.sleeper("after-damage", "")
	if left, _ := filepath.Glob(host.Path("/var/lib/kedge/one/assets/.tmp-123456")); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	if restarts := c.pod("web").Status.ContainerStatuses[0].RestartCount; restarts != 0 {
		t.Errorf("pod web was restarted %d times", restarts)
	}
	c.server.Terminate()

	// Before the move the pods must be stopped, because their files are in the folder.
	if output, err := host.Kedge(context.Background(), "killall", "--data-dir=/var/lib/kedge/one").CombinedOutput(); err != nil {
		t.Fatalf("killall: %v\n%s", err, output)
	}
	run(t, host, "mv", "/var/lib/kedge/one", "/var/lib/kedge/two")
	c = start(t, host, "--data-dir=/var/lib/kedge/two")
	c.works()
	if moved := c.kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}"); moved != uid {
		t.Errorf("pod web is another one: %s, was %s", moved, uid)
	}
	for _, folder := range []string{"/var/lib/kedge/one", "/var/lib/kedge/server"} {
		if _, err := os.Stat(host.Path(folder)); err == nil {
			t.Errorf("%s was made", folder)
		}
	}
	c.server.Terminate()

	for _, other := range []struct{ flag, why string }{
		{"--cluster-cidr=10.50.0.0/16", "cluster-cidr is 10.50.0.0/16, and this cluster began with 10.42.0.0/16"},
		{"--service-cidr=10.51.0.0/16", "service-cidr is 10.51.0.0/16, and this cluster began with 10.43.0.0/16"},
		{"--cluster-domain=other.local", "cluster-domain is other.local, and this cluster began with cluster.local"},
		{"--kube-apiserver-arg=service-cluster-ip-range=10.51.0.0/16", "service-cidr"},
	} {
		refused(t, host, other.why, "--data-dir=/var/lib/kedge/two", other.flag)
	}

	database := host.Path("/var/lib/kedge/two/server/db/state.db")
	version := setVersion(t, database, "v1.99.0+kedge.1")
	refused(t, host, "is too old to read it", "--data-dir=/var/lib/kedge/two")
	setVersion(t, database, version)
	c = start(t, host, "--data-dir=/var/lib/kedge/two")
	c.works()

	// This is a disk that loses a few blocks, followed by a power cut.
	c.server.Kill9()
	run(t, host, "sh", "-e", "-c", `
cd /var/lib/kedge/two/server
cp -a db good
dd if=/dev/urandom of=db/state.db bs=4096 seek=10 count=20 conv=notrunc status=none
rm -f db/state.db-wal db/state.db-shm
echo lost >db/state.db-wal
`)
	refused(t, host, "database is damaged", "--data-dir=/var/lib/kedge/two")
	run(t, host, "sh", "-e", "-c", "cd /var/lib/kedge/two/server; rm -r db; mv good db")
	c = start(t, host, "--data-dir=/var/lib/kedge/two")
	c.works()
	c.server.Terminate()

	run(t, host, "sh", "-c", "rm /var/lib/kedge/two/server/db/state.db*")
	start(t, host, "--data-dir=/var/lib/kedge/two").server.WaitLog("This server had a cluster, and /var/lib/kedge/two/server/db has no state of it any more: an empty cluster begins now")
}

// setVersion writes into a database which version of kedge has used it last, and returns the former
// value. It works on a copy, because SQLite resolves the links that lead into a host.
func setVersion(t *testing.T, file, version string) (before string) {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "state.db")
	copyFile := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	copyFile(file, copied)
	db, err := sql.Open("sqlite3", copied)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow("SELECT value FROM kedge WHERE name = 'version'").Scan(&before); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("UPDATE kedge SET value = ? WHERE name = 'version'", version); err != nil {
		t.Fatal(err)
	}
	// Closing brings everything into one file.
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	copyFile(copied, file)
	return before
}

// refused starts a server that must end with status 1 and log why at the end.
func refused(t *testing.T, host *harness.Host, why string, args ...string) {
	t.Helper()
	server := host.Kedge(t.Context(), append([]string{"server", "--kubelet-arg=cgroup-root=" + host.Cgroup()}, args...)...)
	time.AfterFunc(patience, func() { _ = server.Process.Kill() })
	output, err := server.CombinedOutput()
	message := string(output[max(0, strings.LastIndex("\n"+string(output), "\nkedge: ")):])
	if server.ProcessState.ExitCode() != 1 || !strings.Contains(message, why) {
		t.Errorf("kedge ended with %v and did not say %q:\n%s", err, why, output)
	}
}
