// Package machines runs kedge on whole machines, as its users have them: with a first process such as systemd,
// with a kernel and a distribution of their own. A table has the machines, and another one
// what is shown on them. README.md says how to run it. `make machines` does.
package machines

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/base/host"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/releases"
)

// machineVariable names the one machine to run. If it is empty, those of every day run. With -short the long scenarios are
// left out.
const machineVariable = "KEDGE_MACHINE"

var suite harness.Suite

func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }

// machine is a row of the table. The scenario "machine" compares what it says with the machine.
type machine struct {
	name string
	kind kind
	// suite is Debian's name of the system's version, and system is what the machine calls it.
	suite, system string
	// kernel is how the version of the machine's kernel begins, or empty for that of this machine.
	kernel string
	// cgroup is v2, v1, hybrid, or bare for a version 2 without controllers.
	cgroup string
	// security is the security module, or empty.
	security string
	// architecture is as in `uname -m`, or empty for that of this machine.
	architecture string
	// memory is in MiB, or 0 for that of this machine.
	memory int
	// openrc is true if OpenRC starts the services, and not systemd.
	openrc bool
	// pair is true if another machine of the same kind joins the first as an agent.
	pair bool
	// neighbours is true if the system has firewalls and other programs that change the network.
	neighbours bool
	// brief is true for machines that leave out the scenarios that other machines show as well.
	brief bool
	// daily is true for machines that run without being named.
	daily bool
}

// quick is the user mode in which a program takes the least time for its system calls.
var quick = userMode{source: "7.2", seccomp: true}

// The machines. An empty kernel, architecture or memory is that of the machine that runs the tests.
var machines = []machine{
	{name: "nspawn", kind: nspawn{}, suite: "bookworm", system: "Debian GNU/Linux 12", cgroup: "hybrid", daily: true},
	{name: "nspawn-v1", kind: nspawn{unified: "no"}, suite: "bookworm", system: "Debian GNU/Linux 12", cgroup: "v1"},
	{name: "nspawn-bare", kind: nspawn{unified: "yes"}, suite: "bookworm", system: "Debian GNU/Linux 12", cgroup: "bare", daily: true},
	{name: "debian-12", kind: userMode{source: "6.1"}, suite: "bookworm", system: "Debian GNU/Linux 12", kernel: "6.1.", cgroup: "v2", security: "apparmor", memory: 3072},
	{name: "debian-13", kind: userMode{source: "6.12"}, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "6.12.", cgroup: "v2", security: "apparmor", memory: 3072},
	{name: "debian-13-backports", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "apparmor", memory: 3072, daily: true},
	{name: "neighbours", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "apparmor", memory: 3072, neighbours: true, brief: true},
	{name: "openrc", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "apparmor", memory: 3072, openrc: true},
	{name: "pair", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "apparmor", memory: 3072, pair: true, brief: true},
	{name: "small", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "apparmor", memory: 512, brief: true},
	{name: "small-1024", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "apparmor", memory: 1024, brief: true},
	// Debian 12's policy has no labels for containers.
	{name: "selinux-12", kind: quick, suite: "bookworm", system: "Debian GNU/Linux 12", kernel: "7.2.", cgroup: "v2", security: "selinux", memory: 3072},
	{name: "selinux", kind: quick, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "7.2.", cgroup: "v2", security: "selinux", memory: 3072},
	// Debian's kernel for user mode has nf_tables without the family inet.
	{name: "no-inet", kind: userMode{}, suite: "bookworm", system: "Debian GNU/Linux 12", kernel: "6.1.", cgroup: "v2", security: "apparmor", memory: 3072},
	{name: "debian-13-stock", kind: emulated{}, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "6.12.", cgroup: "v2", security: "apparmor", memory: 4096, brief: true},
	{name: "pair-stock", kind: emulated{}, suite: "trixie", system: "Debian GNU/Linux 13", kernel: "6.12.", cgroup: "v2", security: "apparmor", memory: 2048, pair: true, brief: true},
	{name: "arm64", kind: emulated{}, suite: "bookworm", system: "Debian GNU/Linux 12", kernel: "6.1.", cgroup: "v2", security: "apparmor", architecture: "aarch64", memory: 2048, pair: true, brief: true},
	{name: "armhf", kind: emulated{}, suite: "bookworm", system: "Debian GNU/Linux 12", kernel: "6.1.", cgroup: "v2", security: "apparmor", architecture: "armv7l", memory: 2048, pair: true, brief: true},
	{name: "debian-12-stock", kind: emulated{}, suite: "bookworm", system: "Debian GNU/Linux 12", kernel: "6.1.", cgroup: "v2", security: "apparmor", memory: 4096, brief: true},
}

// TestMachines runs every scenario that fits on every machine of the day, or on the one that the
// variable names.
func TestMachines(t *testing.T) {
	harness.Require(t)
	for _, m := range chosen(t) {
		t.Run(m.name, func(t *testing.T) { m.live(t) })
	}
}

// chosen returns the machines to run. A container cannot run if this machine does not have the control groups that the table
// names.
func chosen(t *testing.T) (found []machine) {
	t.Helper()
	facts, err := host.Detect()
	if err != nil {
		t.Fatal(err)
	}
	name := os.Getenv(machineVariable)
	var names, leftOut []string
	for _, m := range machines {
		names = append(names, m.name)
		if m.name != name && (name != "" || !m.daily) {
			continue
		}
		if _, shared := m.kind.(nspawn); shared && facts.CgroupVersion != 1 {
			leftOut = append(leftOut, m.name)
			continue
		}
		found = append(found, m)
	}
	switch {
	case len(leftOut) > 0 && len(found) == 0:
		t.Skipf("these machines need control groups of version 1, and this one has version 2: %v", leftOut)
	case len(leftOut) > 0:
		t.Logf("left out, because they need control groups of version 1: %v", leftOut)
	case len(found) == 0:
		t.Fatalf("unknown machine %q: set RUN to one of %s", name, strings.Join(names, ", "))
	}
	return found
}

// live runs the scenarios one after the other, because each uses what the earlier ones have made. A
// failed one that later ones need ends the machine's life. In the end live writes the machine's row
// into docs/requirements.md: it names the scenarios that passed, and those that failed. If only some of the
// scenarios ran, the row stays as it is.
func (m machine) live(t *testing.T) {
	l := m.prepare(t, harness.NewNetwork(t), firstName)
	l.start(t)
	result := shown{system: l.sh(t, ". /etc/os-release; echo $PRETTY_NAME"), kernel: l.sh(t, "uname -r"), version: releases.Version(t)}
	complete := len(suites()) == 0 && !testing.Short()
	defer func() {
		if complete {
			l.record(t, result)
		}
	}()
	for _, s := range toRun() {
		if !s.runs(m) {
			continue
		}
		ran := false
		passed := t.Run(s.name, func(t *testing.T) {
			ran = true
			s.run(t, l)
		})
		switch {
		case !ran: // -run leaves it out, and t.Run returns true
			complete = false
		case passed:
			result.passed = append(result.passed, s.name)
		default:
			result.failed = append(result.failed, s.name)
			// A machine that does not answer has an error in place of its log.
			log, err := l.try(l.init().log)
			t.Logf("the end of the log after %s: %v\n%s", s.name, err, log)
			if s.weight == needed {
				t.Fatalf("the rest needs what %s makes", s.name)
			}
		}
	}
}

// TestTable wants each machine to have its own name, and each scenario a machine.
func TestTable(t *testing.T) {
	var names []string
	for _, m := range machines {
		names = append(names, m.name)
	}
	slices.Sort(names)
	if all := len(names); len(slices.Compact(names)) != all {
		t.Errorf("two machines have one name: %v", names)
	}
	for _, s := range scenarios {
		if !slices.ContainsFunc(machines, func(m machine) bool { return s.fits(m) }) {
			t.Errorf("no machine runs the scenario %s", s.name)
		}
	}
}

// goArchitecture returns Go's name of the machine's architecture.
func (m machine) goArchitecture() string {
	switch m.architecture {
	case "aarch64":
		return "arm64"
	case "armv7l":
		return "arm"
	case "x86_64":
		return "amd64"
	}
	return runtime.GOARCH
}

// debianArchitecture returns Debian's name of the machine's architecture.
func (m machine) debianArchitecture() string {
	if name := m.goArchitecture(); name != "arm" {
		return name
	}
	return "armhf"
}

// image returns the name of the disk with the machine's system. The words in it tell what the system has.
func (m machine) image() string {
	name := m.suite
	if m.openrc {
		name += "-openrc"
	}
	if m.security == "selinux" {
		name += "-selinux"
	}
	if m.neighbours {
		name += "-neighbours"
	}
	if len(suites()) > 0 {
		name += "-suites"
	}
	if _, stock := m.kind.(emulated); stock {
		name += "-stock-" + m.debianArchitecture()
	}
	return name + ".img"
}
