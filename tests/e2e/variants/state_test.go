package variants

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestDataDirectory keeps the state elsewhere, damages what is unpacked there,
// and moves it.
func TestDataDirectory(t *testing.T) {
	host := newHost(t)
	run(t, host, "sh", "-c", "mkdir -p /var/lib/kedge/one/agent && mv /var/lib/kedge/agent/images /var/lib/kedge/one/agent/")
	c := start(t, host, "--data-dir=/var/lib/kedge/one")
	c.works()
	uid := c.kubectl("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
	c.server.Terminate()

	// As an unpacking leaves it that was cut short, and a user with a broom.
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

	// To move it one stops the pods first: their files are in it.
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
}
