package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

// sh runs a shell command on the host, which must succeed, and returns its output.
func sh(t *testing.T, host *harness.Host, command string) string {
	t.Helper()
	output, err := host.Command(t.Context(), "/bin/sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return strings.TrimSpace(string(output))
}

// refused checks that a shell command fails and prints text.
func refused(t *testing.T, host *harness.Host, command, text string) {
	t.Helper()
	output, err := host.Command(t.Context(), "/bin/sh", "-c", command).CombinedOutput()
	if err == nil || !strings.Contains(string(output), text) {
		t.Errorf("%s: %v, want a failure that says %q:\n%s", command, err, text, output)
	}
}

// wants checks that output has text.
func wants(t *testing.T, output, text string) {
	t.Helper()
	if !strings.Contains(output, text) {
		t.Errorf("want %q in\n%s", text, output)
	}
}

// without makes a folder for PATH with all programs of the host except some.
func without(t *testing.T, host *harness.Host, folder string, programs ...string) {
	t.Helper()
	sh(t, host, "mkdir "+folder+" && for bin in /usr/bin /bin /usr/sbin /sbin; do ln -s $bin/* "+folder+"/ 2>/dev/null; done; cd "+folder+" && rm "+strings.Join(programs, " "))
}

// TestFaults gives install.sh what it must refuse, with a script in place of kedge, on a host
// without a service manager. Nothing may change.
func TestFaults(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "host")
	good := newRelease(t, releases.Script("v1.0.0+test", ""))
	good.write(t, host, "/opt/good")
	good.damaged().write(t, host, "/opt/damaged")
	newRelease(t, []byte("#!/bin/sh\nexit 1\n")).write(t, host, "/opt/silent")
	host.WriteFile("/opt/empty/install.sh", string(good["install.sh"]))
	// This host has no curl.
	without(t, host, "/opt/wget", "curl")
	without(t, host, "/opt/packed", "xz", "gzip")
	key := signed(t, good)
	for name, data := range key {
		host.WriteFile("/opt/keys/"+name, string(data))
	}
	good.write(t, host, "/opt/signed")
	good["SHA256SUMS"] = append(good["SHA256SUMS"], '\n')
	good.write(t, host, "/opt/forged")

	before := files(t, host, "/etc /usr/local")
	for _, test := range []struct{ command, text string }{
		{"sh /opt/damaged/install.sh", "does not match SHA256SUMS, so nothing was changed"},
		{"sh /opt/silent/install.sh", "does not run here, so nothing was changed"},
		{"INSTALL_KEDGE_FROM=/opt/empty sh /opt/good/install.sh", "that is no release of kedge"},
		{"INSTALL_KEDGE_FROM=/opt/none sh /opt/good/install.sh", "which is not there"},
		{"INSTALL_KEDGE_FROM=/opt/good/SHA256SUMS sh /opt/good/install.sh", "is not for this host"},
		{"INSTALL_KEDGE_FROM=https://127.0.0.1:9/release sh /opt/good/install.sh 2>&1", "that is no release of kedge"},
		{"INSTALL_KEDGE_FROM=http://127.0.0.1:9/release sh /opt/good/install.sh", "anybody on the way can change what http://127.0.0.1:9/release sends"},
		{"PATH=/opt/wget INSTALL_KEDGE_FROM=https://127.0.0.1:9/release sh /opt/good/install.sh", "it takes curl to download"},
		{"PATH=/opt/packed sh /opt/good/install.sh", "could be unpacked here: install xz or gzip"},
		{"PATH=/opt/packed INSTALL_KEDGE_FROM=$(ls /opt/good/kedge-*.gz) sh /opt/good/install.sh", "takes gz to unpack"},
		{"sh /opt/good/install.sh agent --server=https://a:6443 --token", "--token needs a value"},
		{"INSTALL_KEDGE_TIMEOUT=5m sh /opt/good/install.sh", "a number of seconds"},
		{"INSTALL_KEDGE_KEY=/opt/none.pem sh /opt/signed/install.sh", "is /opt/none.pem, which is not there"},
		{"INSTALL_KEDGE_BIN_DIR=bin sh /opt/good/install.sh", "absolute path"},
		{"sh /opt/good/install.sh serve", "server, agent or uninstall"},
		{"sh /opt/good/install.sh agent", "set KEDGE_URL=https://HOST:6443"},
		{`sh /opt/good/install.sh server --node-label "a b"`, "is for /etc/kedge/config.yaml"},
		{`KEDGE_TOKEN="it's" sh /opt/good/install.sh`, "write it to /etc/kedge/config.yaml"},
		{"sh /opt/good/install.sh uninstall", "there is no /usr/local/bin/kedge"},
		{"INSTALL_KEDGE_KEY=/opt/keys/other.pem sh /opt/signed/install.sh", "is not by the key that is trusted"},
		{"INSTALL_KEDGE_KEY=/opt/keys/release.pem sh /opt/forged/install.sh", "is not by the key that is trusted"},
		{"INSTALL_KEDGE_KEY=/opt/keys/release.pem sh /opt/good/install.sh", "the release is not signed"},
	} {
		refused(t, host, test.command, test.text)
		if changed := harness.Difference(before, files(t, host, "/etc /usr/local")); changed != "" {
			t.Fatalf("%s changed\n%s", test.command, changed)
		}
	}
	wants(t, sh(t, host, "INSTALL_KEDGE_KEY=/opt/keys/release.pem sh /opt/signed/install.sh"), "v1.0.0+test is installed")
}

// TestRestoring checks that install.sh restores before it ends, and that nothing stays if that fails.
func TestRestoring(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	host := harness.NewNetwork(t).NewHost(t, "host")
	newRelease(t, releases.Script("v1.0.0+test", `restore) [ "$*" = "restore file:///backup --key /opt/key" ] || exit 1; echo "restored all" ;;`)).write(t, host, "/opt/new")
	before := files(t, host, "/etc /usr/local")
	refused(t, host, "INSTALL_KEDGE_RESTORE='file:///other --key /opt/key' sh /opt/new/install.sh", "the backup was not restored")
	if changed := harness.Difference(before, files(t, host, "/etc /usr/local")); changed != "" {
		t.Fatalf("a restore that failed changed\n%s", changed)
	}
	output := sh(t, host, "INSTALL_KEDGE_RESTORE='file:///backup --key /opt/key' sh /opt/new/install.sh")
	wants(t, output, "restored all")
	wants(t, output, "v1.0.0+test is installed")
}

// TestFiles checks the files that install.sh makes without a service manager.
func TestFiles(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	network := harness.NewNetwork(t)
	host := network.NewHost(t, "host")
	first, second := newRelease(t, releases.Script("v1.0.0+test", "")), newRelease(t, releases.Script("v1.0.1+test", ""))
	for name, data := range signed(t, first) {
		host.WriteFile("/opt/keys/"+name, string(data))
	}
	url := first.serve(t, network.NewHost(t, "mirror"))
	second.write(t, host, "/opt/second")

	t.Log("an agent, from a URL, by a pipe")
	output := sh(t, host, "curl -sf "+url+"/install.sh | INSTALL_KEDGE_FROM="+url+" INSTALL_KEDGE_KEY=/opt/keys/release.pem KEDGE_URL=https://server:6443 KEDGE_TOKEN=secret sh -s - --node-label=a=b")
	wants(t, output, "set -a; . /etc/kedge/kedge.env; set +a; /usr/local/bin/kedge agent --node-label=a=b")
	if got, want := sh(t, host, "stat -c %a /etc/kedge/kedge.env; cat /etc/kedge/kedge.env"), "600\nKEDGE_TOKEN='secret'\nKEDGE_URL='https://server:6443'"; got != want {
		t.Errorf("the environment is\n%s\nwant\n%s", got, want)
	}
	wants(t, sh(t, host, "readlink /usr/local/bin/ctr"), "kedge")
	sh(t, host, "cmp /opt/keys/release.pem /etc/kedge/release.pem")

	refused(t, host, "INSTALL_KEDGE_RESTORE=file:///backup sh /opt/second/install.sh", "is for a machine without kedge")

	t.Log("a newer version, in a folder: settings that are not given again stay")
	output = sh(t, host, "KEDGE_TOKEN=other sh /opt/second/install.sh")
	wants(t, output, "v1.0.1+test is installed")
	wants(t, output, "/usr/local/bin/kedge agent --node-label=a=b")
	if got, want := sh(t, host, "cat /etc/kedge/kedge.env"), "KEDGE_TOKEN='other'\nKEDGE_URL='https://server:6443'"; got != want {
		t.Errorf("the environment is\n%s\nwant\n%s", got, want)
	}
	wants(t, sh(t, host, "sh /opt/second/install.sh --node-label=c=d"), "/usr/local/bin/kedge agent --node-label=c=d")
	refused(t, host, "INSTALL_KEDGE_BIN_DIR=/opt/bin sh /opt/second/install.sh", "kedge is installed as /usr/local/bin/kedge")

	t.Log("a single file of a release")
	sh(t, host, "INSTALL_KEDGE_FROM=$(ls /opt/second/kedge-*.gz) sh /opt/second/install.sh")

	t.Log("an executable that is not compressed, on a host that can unpack nothing")
	without(t, host, "/opt/packed", "xz", "gzip")
	program := releases.Script("v1.0.3+test", "")
	newRelease(t, program).unpacked(program).write(t, host, "/opt/plain")
	wants(t, sh(t, host, "PATH=/opt/packed sh /opt/plain/install.sh"), "v1.0.3+test is installed")
	program = releases.Script("v1.0.4+test", "")
	newRelease(t, program).unpacked(program).write(t, host, "/opt/single")
	wants(t, sh(t, host, "INSTALL_KEDGE_FROM=/opt/single/"+releases.Name()+" sh /opt/single/install.sh"), "v1.0.4+test is installed")
	compressed := newRelease(t, releases.Script("v1.0.5+test", ""))
	host.WriteFile("/opt/keys/compressed.pem", string(signed(t, compressed)["release.pem"]))
	url = compressed.serve(t, network.NewHost(t, "second-mirror"))
	refused(t, host, "PATH=/opt/packed INSTALL_KEDGE_KEY=/opt/keys/compressed.pem INSTALL_KEDGE_FROM="+url+" sh /opt/plain/install.sh", "a release has it compressed. Install xz or gzip, or unpack it on another host")

	t.Log("a checkout")
	host.WriteFile("/opt/checkout/install.sh", string(second["install.sh"]))
	host.WriteFile("/opt/checkout/cmd/kedge/main.go", "")
	refused(t, host, "/bin/sh /opt/checkout/install.sh", "run make in it first")
	host.WriteFile("/opt/checkout/bin/kedge", string(releases.Script("v1.0.2+test", "")))
	refused(t, host, "chmod 755 /opt/checkout/bin/kedge; INSTALL_KEDGE_KEY=/opt/key.pem sh /opt/checkout/install.sh", "which nobody has signed")
	wants(t, sh(t, host, "cd /opt/checkout; sh install.sh"), "v1.0.2+test is installed")
}

// TestInterrupted interrupts an install half-way, and an upgrade while it waits for the new version.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := system{host: harness.NewNetwork(t).NewHost(t, "host"), marker: "/run/systemd/system/none", unit: "/etc/systemd/system/kedge.service"}
	s.addManager(t)
	newRelease(t, releases.Script("v1.0.0+test", "server) exec sleep 1006 ;;\nstatus) [ -e /run/fake/pid ] || [ -e /run/by-hand ] ;;")).write(t, s.host, "/opt/first")
	newRelease(t, releases.Script("v1.0.1+test", "server) exec sleep 1006 ;;")).write(t, s.host, "/opt/second")
	// A first install that cannot be completed must leave nothing.
	before := s.installed(t)
	sh(t, s.host, "mv /opt/fake/systemctl /opt/fake/kept && ln -s /bin/false /opt/fake/systemctl")
	refused(t, s.host, "sh /opt/first/install.sh", "nothing was changed: no kedge is installed")
	if changed := harness.Difference(before, s.installed(t)); changed != "" {
		t.Errorf("a first install that failed left\n%s", changed)
	}
	sh(t, s.host, "mv /opt/fake/kept /opt/fake/systemctl")

	s.host.WriteFile("/run/by-hand", "")
	refused(t, s.host, "sh /opt/first/install.sh", "kedge runs here, but not as a service")
	sh(t, s.host, "rm /run/by-hand; sh /opt/first/install.sh")
	before = s.installed(t)
	refused(t, s.host, `sh /opt/second/install.sh & until kedge --version | grep -q v1.0.1; do sleep 0.1; done; kill $!; wait $!`,
		"nothing was changed: the previous kedge is installed and runs")
	if changed := harness.Difference(before, s.installed(t)); changed != "" {
		t.Errorf("files changed:\n%s", changed)
	}
	if command := sh(t, s.host, "cat /run/fake/calls"); !strings.HasSuffix(command, "systemctl start --no-block kedge") {
		t.Errorf("the calls were\n%s", command)
	}
}

// TestSlow installs kedge on a host that needs longer than the limit and more restarts than three for
// all components, and versions that make no progress.
func TestSlow(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	s := system{host: harness.NewNetwork(t).NewHost(t, "host"), marker: "/run/systemd/system/none", unit: "/etc/systemd/system/kedge.service"}
	s.addManager(t)
	// One more of ten components is ready each time that somebody asks for a whole status.
	const status = `status)
	[ -e /run/fake/pid ] || exit 1
	n=$(cat /run/asked 2>/dev/null || echo 0)
	n=$((n + 1)); echo $n >/run/asked
	ready=$((n / 4)); [ $ready -lt 10 ] || exit 0
	echo "kedge v1 on node host, process 1"; echo; echo "COMPONENT   STATE   SINCE   LAST ERROR"
	i=0; while [ $i -lt 10 ]; do i=$((i + 1)); [ $i -gt $ready ] && echo "part-$i   Starting   1s" || echo "part-$i   Ready   1s"; done
	echo; echo "DATASTORE   Ready"
	exit 1 ;;`
	newRelease(t, releases.Script("v1.0.0+slow", "server) echo it begins; sleep 3; exit 1 ;;\n"+status)).write(t, s.host, "/opt/slow")
	newRelease(t, releases.Script("v1.0.1+ends", "server) echo the port is taken; exit 1 ;;")).write(t, s.host, "/opt/ends")
	newRelease(t, releases.Script("v1.0.2+hangs", "server) echo waiting for nothing; exec sleep 1007 ;;\nstatus) echo 'COMPONENT   STATE'; echo 'part   Starting'; exit 1 ;;")).write(t, s.host, "/opt/hangs")

	wants(t, sh(t, s.host, "INSTALL_KEDGE_TIMEOUT=20 sh /opt/slow/install.sh"), "v1.0.0+slow is ready")
	if restarts := sh(t, s.host, "cat /run/fake/restarts"); len(restarts) == 1 && restarts < "4" {
		t.Errorf("kedge restarted %s times, which does not show a slow start", restarts)
	}
	for folder, line := range map[string]string{"ends": "the port is taken", "hangs": "waiting for nothing"} {
		sh(t, s.host, "systemctl stop kedge; rm -r /usr/local/bin/kedge /etc/kedge /run/fake/log")
		output, err := s.host.Command(t.Context(), "/bin/sh", "-c", "INSTALL_KEDGE_TIMEOUT=10 sh /opt/"+folder+"/install.sh").CombinedOutput()
		if err == nil {
			t.Errorf("%s: no failure", folder)
		}
		wants(t, string(output), "does not get ready, see its log above")
		wants(t, string(output), line)
		if strings.Contains(string(output), "left-over process") {
			t.Errorf("systemd's lines are among kedge's:\n%s", output)
		}
	}
}

// signed adds a signature to a release, and returns its key and another key.
func signed(t *testing.T, r release) map[string][]byte {
	t.Helper()
	harness.Need(t, "openssl")
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "SHA256SUMS"), r["SHA256SUMS"], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		"openssl ecparam -genkey -name prime256v1 -noout -out key",
		"openssl ec -in key -pubout -out release.pem",
		"openssl ecparam -genkey -name prime256v1 -noout | openssl ec -pubout -out other.pem",
		"openssl dgst -sha256 -sign key -out SHA256SUMS.sig SHA256SUMS",
	} {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = folder
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, output)
		}
	}
	made := map[string][]byte{}
	for _, name := range []string{"release.pem", "other.pem", "SHA256SUMS.sig"} {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		made[name] = data
	}
	r["SHA256SUMS.sig"] = made["SHA256SUMS.sig"]
	return made
}
