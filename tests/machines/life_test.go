package machines

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	// shellPort is where the machine's shell.socket listens.
	shellPort = "23"
	// patience limits how long the machine may take for anything. An emulated one is slow.
	patience = 15 * time.Minute
	// suitePatience limits how long the tests of one package may take.
	suitePatience = 6 * time.Hour
	// consoleTail is how much of the console is shown if a test fails, in bytes.
	consoleTail = 6000
)

// kind is a way to run a machine.
type kind interface {
	// prepare makes the disk of a new machine. It may add links to the host.
	prepare(t *testing.T, l *life)
	// command returns what starts the machine. It runs as long as the machine does.
	command(l *life) *harness.Cmd
	// booted makes up for what the kind lacks, after each boot.
	booted(t *testing.T, l *life)
	// mount returns the command by which the machine mounts the source tree at sourceTree.
	mount(l *life) string
	// slow is how many times as long as usual tests of other packages may wait there: see harness.Slowly.
	slow() int
}

// life is a machine from its first boot to the end of its test. Everything of it is in a host of the
// harness, so that nothing of it outlives the test, however that ends.
type life struct {
	machine
	network *harness.Network
	host    *harness.Host
	// folder has the machine's disk and its console. It is the same on the host and outside.
	folder string
	// tree is the source tree.
	tree string
	// address is the machine's, as seen from the host.
	address string
	// program is the kernel, and base the disk that all machines of the kind begin with.
	program, base string
	// parameters are those of the machine's kernel.
	parameters []string
	ctx        context.Context

	running *harness.Cmd
	ended   chan struct{}
	// before is the state of the machine before anything was installed.
	before string
	// version is that of the kedge under test, and planned the one that it gets by a Plan before.
	version, planned string
	// containers are those of the pods that must not be started again.
	containers string
}

// firstName is the host name of a machine, if it has no other one.
const firstName = "machine"

// prepare makes a new machine on a network, with a host name.
func (m machine) prepare(t *testing.T, network *harness.Network, hostname string) *life {
	t.Helper()
	host := network.NewHost(t, hostname)
	tree, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	l := &life{machine: m, network: network, host: host, folder: host.Scratch("machine"), tree: tree, ctx: context.Background()}
	if hostname != firstName {
		l.parameters = append(l.parameters, "systemd.hostname="+hostname)
	}
	m.kind.prepare(t, l)
	t.Cleanup(func() {
		if t.Failed() {
			console, _ := os.ReadFile(l.console())
			log, _ := l.try(l.init().log)
			t.Logf("the end of the console of %s:\n%s\nand of its log:\n%s", m.name, console[max(0, len(console)-consoleTail):], log)
		}
	})
	return l
}

// console is the file with what the machine writes to its console.
func (l *life) console() string { return filepath.Join(l.folder, "console.log") }

// start starts the machine and waits until it has booted.
func (l *life) start(t *testing.T) {
	t.Helper()
	console, err := os.OpenFile(l.console(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close()
	// A boot begins without loop devices. Those of a container are in the kernel of this machine.
	if err := hosts.DetachLoops(l.folder); err != nil {
		t.Fatal(err)
	}
	l.running, l.ended = l.kind.command(l), make(chan struct{})
	l.running.Stdout, l.running.Stderr = console, console
	if err := l.running.Start(); err != nil {
		t.Fatalf("start %s: %v", l.name, err)
	}
	go func(running *harness.Cmd, ended chan struct{}) {
		_ = running.Wait()
		close(ended)
	}(l.running, l.ended)
	harness.Eventually(t, patience, l.name+" to boot", func() error {
		select {
		case <-l.ended:
			console, _ := os.ReadFile(l.console())
			t.Fatalf("%s ended with %s:\n%s", l.name, l.running.ProcessState, console[max(0, len(console)-consoleTail):])
		default:
		}
		state, err := l.try(l.init().booted)
		if strings.TrimSpace(state) == "degraded" {
			units, _ := l.try(l.init().why)
			t.Fatalf("units of the new machine have failed:\n%s", units)
		}
		return err
	})
	l.kind.booted(t, l)
}

// cut ends the machine at once, as a power cut does.
func (l *life) cut(t *testing.T) {
	t.Helper()
	// This kills all processes of the host but its first one.
	if output, err := l.host.Command(t.Context(), "/bin/sh", "-c", "kill -KILL -1").CombinedOutput(); err != nil && l.runs() {
		t.Fatalf("cut the power of %s: %v: %s", l.name, err, output)
	}
	<-l.ended
}

func (l *life) runs() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// reboot reboots the machine in order, and waits until it has booted again.
func (l *life) reboot(t *testing.T) {
	t.Helper()
	began := time.Now()
	// The shell may end before it has answered.
	output, err := l.try(l.init().reboot)
	select {
	case <-l.ended:
		t.Logf("down after %s", time.Since(began).Round(time.Second))
	case <-time.After(patience):
		t.Fatalf("%s did not end within %s after it was asked to reboot: %v: %s", l.name, patience, err, output)
	}
	l.start(t)
}

// sh runs a shell command on the machine, which must succeed, and returns its output.
func (l *life) sh(t *testing.T, command string) string {
	t.Helper()
	output, err := l.try(command)
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
	return strings.TrimSpace(output)
}

// eventually waits until a shell command succeeds.
func (l *life) eventually(t *testing.T, command string) {
	t.Helper()
	harness.Eventually(t, patience, command, func() error {
		output, err := l.try(command)
		if err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
}

// try runs a shell command on the machine.
func (l *life) try(command string) (output string, err error) {
	// The status comes after the output, because the connection has no other place for it.
	answer, err := l.send("(\n"+command+"\n) </dev/null 2>&1; printf '\\n%s' $?; exit\n", nil)
	if err != nil {
		return answer, err
	}
	output, status, found := cutLast(answer, "\n")
	if !found {
		return answer, fmt.Errorf("the machine's shell ended without a status")
	}
	if status != "0" {
		return output, fmt.Errorf("status %s", status)
	}
	return output, nil
}

// adminKubeconfig is where kedge writes it.
const adminKubeconfig = "/etc/kedge/kedge.yaml"

// tryKubectl runs kubectl on the machine's host, as the administrator of the machine's cluster. The machine itself may need
// many seconds for each call. A shell of the host runs the command. Its output may go through a pipe, but nothing else
// may follow, because that would run on the host too.
func (l *life) tryKubectl(command string) (output string, err error) {
	kubeconfig, err := l.try("cat " + adminKubeconfig)
	if err != nil {
		return kubeconfig, err
	}
	path := filepath.Join(l.folder, "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	// The certificate is not verified, because the clock of the machine may be another one than that of the host.
	script := fmt.Sprintf("%s kubectl --kubeconfig=%s --server=https://%s:6443 --insecure-skip-tls-verify %s", os.Getenv("KEDGE_BINARY"), path, l.address, command)
	all, err := l.host.Command(ctx, "/bin/sh", "-c", script).CombinedOutput()
	return strings.TrimSpace(string(all)), err
}

// kubectl is tryKubectl for what must succeed.
func (l *life) kubectl(t *testing.T, command string) string {
	t.Helper()
	output, err := l.tryKubectl(command)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", command, err, output)
	}
	return output
}

// untilKubectl waits until kubectl succeeds, and returns its output.
func (l *life) untilKubectl(t *testing.T, command string) (output string) {
	t.Helper()
	harness.Eventually(t, patience, "kubectl "+command, func() (err error) {
		if output, err = l.tryKubectl(command); err != nil {
			return fmt.Errorf("%w: %s", err, output)
		}
		return nil
	})
	return output
}

// cutLast is strings.Cut at the last separator.
func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// write writes a file of the machine.
func (l *life) write(t *testing.T, path string, mode os.FileMode, data []byte) {
	t.Helper()
	script := fmt.Sprintf("mkdir -p %s && head -c %d >%s && chmod %o %s && echo written; exit\n", filepath.Dir(path), len(data), path, mode, path)
	if answer, err := l.send(script, data); err != nil || answer != "written\n" {
		t.Fatalf("write %s on %s: %v: %s", path, l.name, err, answer)
	}
}

// send gives a script and what it reads to the machine's shell, and returns what comes back. bash
// reads no further than the line that it runs.
func (l *life) send(script string, data []byte) (answer string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := l.host.DialContext(ctx, "tcp", net.JoinHostPort(l.address, shellPort))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.Copy(conn, io.MultiReader(strings.NewReader(script), bytes.NewReader(data))); err != nil {
		return "", err
	}
	all, err := io.ReadAll(conn)
	return string(all), err
}

// file returns the path of a file below build/machines, which make makes if it is not there.
func (l *life) file(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join("build/machines", name)
	command := exec.Command("make", "-C", l.tree, path)
	// A make that runs this test has set these variables. They would give its options to the make below.
	command.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=", "MAKELEVEL=")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", path, err, output)
	}
	return filepath.Join(l.tree, path)
}

// run runs a program on the machine's host, which must succeed.
func (l *life) run(t *testing.T, words ...string) {
	t.Helper()
	if output, err := l.host.Command(t.Context(), words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, output)
	}
}

// cable is the host's interface that the machine sends and receives through.
const cable = "machine0"

// link connects the machine to the host's network. The commands of ip make the interface cable, and the one called port, which
// is attached to the network. Both may be the same. The machine's kernel is told the address of its interface, which
// it calls device.
func (l *life) link(t *testing.T, device, port string, commands ...string) {
	t.Helper()
	harness.Need(t, "iproute2")
	last := l.host.Address.As4()[3]
	own := fmt.Sprintf("198.18.0.%d", 100+last)
	l.address = "198.18.0." + strconv.Itoa(int(last))
	commands = append(commands, "link add br0 type bridge", "link set eth0 master br0", "link set br0 up",
		"link set "+port+" master br0", "link set "+port+" up", "addr add "+own+"/24 dev br0")
	for _, command := range commands {
		l.run(t, append([]string{"ip"}, strings.Fields(command)...)...)
	}
	l.parameters = append(l.parameters, fmt.Sprintf("ip=%s::%s:255.255.255.0::%s:off", l.address, own, device))
}
