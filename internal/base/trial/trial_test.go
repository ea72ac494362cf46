package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// Processes of this test binary know from these variables what they are.
const (
	// roleVariable is guard for a Guard that kills itself at the step of killVariable. It
	// executes what is installed then, which says so.
	roleVariable = "TRIAL_TEST_ROLE"
	killVariable = "TRIAL_TEST_KILL"
	// diaryVariable is a file with what all processes do, and for how long a new executable
	// must have been ready.
	diaryVariable  = "TRIAL_TEST_DIARY"
	steadyVariable = "TRIAL_TEST_STEADY"
)

// forever is longer than any test.
const forever = time.Hour

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "guard":
		beGuard()
	case "plain":
		note("installed " + version())
	}
}

func note(text string) {
	file, err := os.OpenFile(os.Getenv(diaryVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(file, text)
	}
	if err != nil {
		panic(err)
	}
}

// version returns which copy of the test binary runs.
func version() string {
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	return string(data[len(data)-3:])
}

// beGuard does what package cli does, and is also the new executable.
func beGuard() {
	if child := FromEnvironment(); child.Running() {
		beChild(child)
		return
	}
	file := ToGuard()
	if file == "" {
		note("installed " + version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	steady, err := time.ParseDuration(os.Getenv(steadyVariable))
	if err != nil {
		panic(err)
	}
	environment, installed := os.Environ(), os.Args[0]
	g := Guard{
		Record: file, Installed: installed, Own: "/proc/self/exe", Args: os.Args, Environment: environment,
		Patience: forever, Steady: steady, StopPatience: forever, Hangups: hangups,
		Say: func(string) {},
		step: func(name string) {
			if name == os.Getenv(killVariable) {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	}
	if err := g.Run(ctx); err != nil {
		panic(err)
	}
	if ctx.Err() != nil {
		return
	}
	panic(syscall.Exec(installed, os.Args, environment))
}

// beChild is a new executable that says that it is ready, and runs until SIGTERM. If the
// argument says so, it fails.
func beChild(child *Child) {
	note(fmt.Sprintf("child %d %s %s", os.Getpid(), version(), strings.Join(os.Args[1:], " ")))
	signals := make(chan os.Signal, 3)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	child.Component(component.Status{Name: "store", State: component.Starting})
	switch os.Args[1] {
	case "fail":
		child.Explain(errors.New("store: the disk is full"))
		os.Exit(1)
	case "anew":
		if os.Getenv(killVariable) == "" {
			panic(syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), append(child.Inherit(), killVariable+"=nobody")...)))
		}
	case "panic":
		go panic("no such page")
		select {}
	}
	child.Component(component.Status{Name: "store", State: component.Ready})
	child.Node("")
	child.Components()
	note("ready")
	for s := range signals {
		note(s.String())
		if s != syscall.SIGHUP {
			return
		}
	}
}

// folder is a host with an installed executable and a new one.
type folder struct {
	*testing.T
	path  string
	order upgrades.Order
}

func (f *folder) installed() string { return filepath.Join(f.path, "kedge") }
func (f *folder) record() string    { return filepath.Join(f.path, "data", "trial.json") }
func (f *folder) diary() string     { return filepath.Join(f.path, "diary") }
func (f *folder) candidate() string { return Candidate(f.installed(), f.order.SHA256) }

// newFolder makes a host whose new executable has a content. The installed one is old.
func newFolder(t *testing.T, old, content []byte) *folder {
	t.Helper()
	f := &folder{T: t, path: t.TempDir()}
	f.write(f.installed(), old)
	path := filepath.Join(f.path, "new")
	f.write(path, content)
	digest, err := Digest(path)
	if err != nil {
		t.Fatal(err)
	}
	f.order = upgrades.Order{ID: "1", Version: "v1.38.0+kedge.1", SHA256: digest, Size: int64(len(content))}
	return f
}

func (f *folder) write(path string, content []byte) {
	f.Helper()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		f.Fatal(err)
	}
}

// begin does what the upgrader of a node does.
func (f *folder) begin() Record {
	f.Helper()
	data, err := os.ReadFile(filepath.Join(f.path, "new"))
	if err != nil {
		f.Fatal(err)
	}
	f.write(f.candidate(), data)
	r, err := Begin(f.record(), f.order)
	if err != nil {
		f.Fatal(err)
	}
	return r
}

// resume does what the upgrader of a node does when it starts.
func (f *folder) resume() Record {
	f.Helper()
	r, err := Resume(f.record(), f.installed())
	if err != nil {
		f.Fatal(err)
	}
	if _, err := os.Stat(f.candidate()); !errors.Is(err, os.ErrNotExist) {
		f.Errorf("the new executable is still there: %v", err)
	}
	return r
}

// now returns which content the installed executable has.
func (f *folder) now() string {
	f.Helper()
	digest, err := Digest(f.installed())
	if err != nil {
		f.Fatal(err)
	}
	if digest == f.order.SHA256 {
		return "new"
	}
	return "old"
}

// guard returns the Guard in this process, of a new executable that is a script.
func (f *folder) guard() *Guard {
	return &Guard{
		Record: f.record(), Installed: f.installed(), Own: f.installed(),
		Args: []string{"kedge", "server"}, Environment: []string{"DIARY=" + f.diary(), notifyVariable + "=/run/notify"},
		Patience: forever, Steady: time.Millisecond, StopPatience: forever,
		Say: func(message string) { f.Log(message) },
	}
}

// TestGuard tries new executables that are scripts. Only those that are ready for a while are
// installed.
func TestGuard(t *testing.T) {
	const running = "while :; do sleep 0.01; done\n"
	for name, test := range map[string]struct {
		script  string
		set     func(*folder, *Guard)
		stage   upgrades.Stage
		message string
	}{
		"works": {script: "trap 'exit 0' TERM\necho ready >&3\n" + running, stage: upgrades.Upgraded},
		"has the arguments and the environment": {
			script: "trap 'exit 0' TERM\n[ \"$*\" = server ] && [ -n \"$DIARY\" ] && [ -z \"$NOTIFY_SOCKET\" ] || exit 3\necho ready >&3\n" + running, stage: upgrades.Upgraded,
		},
		"does not stop": {
			script: "trap '' TERM\necho ready >&3\n" + running, stage: upgrades.Upgraded,
			set: func(_ *folder, g *Guard) { g.StopPatience = 10 * time.Millisecond },
		},
		"ends":                      {script: "exit 3\n", stage: upgrades.Failed, message: "ended after 0s (exit status 3). The log"},
		"says why it ends":          {script: "echo waiting for store >&3\necho 'store: the disk is full' >&3\nexit 1\n", stage: upgrades.Failed, message: "(exit status 1):\nstore: the disk is full"},
		"says too much":             {script: "i=0; while [ $i -lt 2000 ]; do echo line $i >&3; i=$((i+1)); done\nexit 1\n", stage: upgrades.Failed, message: "(exit status 1):\nline 0\nline 1\n"},
		"is no executable":          {script: "", stage: upgrades.Failed, message: "cannot be started: "},
		"ends after it was ready":   {script: "echo ready >&3\nexit 0\n", set: long, stage: upgrades.Failed, message: "(exit status 0)"},
		"is killed":                 {script: "echo ready >&3\nkill -9 $$\n", set: long, stage: upgrades.Failed, message: "(signal: killed)"},
		"closes the pipe, and runs": {script: "exec 3>&-\nsleep 0.1\nexit 1\n", set: long, stage: upgrades.Failed, message: "(exit status 1)"},
		"is never ready": {
			script: "trap 'exit 0' TERM\n" + running, stage: upgrades.Failed, message: "has made no progress for 10ms, and was waiting for its start. The log",
			set: func(_ *folder, g *Guard) { g.Patience = 10 * time.Millisecond },
		},
		"is ready too late, and not for long": {
			script: "trap 'exit 0' TERM\nsleep 0.1\necho ready >&3\necho waiting for its Node >&3\n" + running, stage: upgrades.Failed, message: "and was waiting for its ",
			set: func(_ *folder, g *Guard) { g.Patience, g.Steady = 10*time.Millisecond, forever },
		},
		"is slow": {
			// Each component takes less than the patience, and all of them more.
			script: "trap 'exit 0' TERM\ni=0; while [ $i -lt 30 ]; do echo waiting for part-$i, other >&3; sleep 0.2; i=$((i+1)); done\necho waiting for its Node >&3\necho ready >&3\n" + running,
			stage:  upgrades.Upgraded, set: func(_ *folder, g *Guard) { g.Patience = 5 * time.Second },
		},
		"waits for ever, in other words each time": {
			script: "trap 'exit 0' TERM\ni=0; while :; do echo waiting for its Node, since $i >&3; i=$((i+1)); sleep 0.01; done\n",
			stage:  upgrades.Failed, message: "has made no progress for 100ms, and was waiting for its Node",
			set: func(_ *folder, g *Guard) { g.Patience = 100 * time.Millisecond },
		},
		"leaves somebody who holds the pipe": {script: "sleep 3 >/dev/null 2>&1 &\necho gone >&3\nexit 1\n", stage: upgrades.Failed, message: "(exit status 1):\ngone"},
		"another executable is installed meanwhile": {
			script: "trap 'exit 0' TERM\necho ready >&3\n" + running, stage: upgrades.Failed, message: "works, but cannot be installed: somebody has put another",
			set: func(f *folder, g *Guard) {
				g.Own = filepath.Join(f.path, "own")
				f.write(g.Own, nil)
			},
		},
		"cannot be renamed": {
			script: "trap 'exit 0' TERM\necho ready >&3\n" + running, stage: upgrades.Failed, message: "works, but cannot be installed: ",
			set: func(f *folder, g *Guard) {
				// A path that a file cannot take, as one that something is mounted at.
				if err := errors.Join(os.Remove(f.installed()), os.Mkdir(f.installed(), 0o755)); err != nil {
					f.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			content := []byte("#!/bin/sh\n" + test.script)
			if test.script == "" {
				content = []byte("\x7fELF")
			}
			f := newFolder(t, []byte("old"), content)
			g := f.guard()
			if test.set != nil {
				test.set(f, g)
			}
			f.begin()
			if err := g.Run(t.Context()); err != nil {
				t.Error(err)
			}
			r, err := Read(f.record())
			if err != nil {
				t.Fatal(err)
			}
			if r.Report.Stage != test.stage || !strings.Contains(r.Report.Message, test.message) || len(r.Report.Message) > 2*maxExplanation {
				t.Errorf("got %s: %s", r.Report.Stage, r.Report.Message)
			}
			if _, err := os.Stat(f.candidate()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the new executable is still beside the installed one: %v", err)
			}
			if info, err := os.Stat(f.installed()); err == nil && info.Mode().IsRegular() && (f.now() == "new") != (test.stage == upgrades.Upgraded) {
				t.Errorf("the %s executable is installed", f.now())
			}
		})
	}
}

// long lets nothing become ready for long enough.
func long(_ *folder, g *Guard) { g.Steady = forever }

// TestNoTrial has a Guard without a trial.
func TestNoTrial(t *testing.T) {
	f := newFolder(t, []byte("old"), []byte("#!/bin/sh\ntouch $DIARY"))
	if err := f.guard().Run(t.Context()); err == nil {
		t.Error("there is no record, and it is no fault")
	}
	f.begin()
	f.write(f.record(), []byte("{"))
	if err := f.guard().Run(t.Context()); err == nil {
		t.Error("the record cannot be read, and it is no fault")
	}
	if _, err := os.Stat(f.diary()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was tried: %v", err)
	}
}

// process is a Guard in a process of its own. Both executables are copies of this binary.
type process struct {
	*folder
	command *exec.Cmd
}

// images are this binary, once with old and once with new at its end.
func images(t *testing.T) (old, next []byte) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return append(own[:len(own):len(own)], "old"...), append(own[:len(own):len(own)], "new"...)
}

// run begins a trial in a process of its own.
func (f *folder) run(does, steady, killed string) *process {
	f.Helper()
	p := &process{f, exec.Command(f.installed(), does)}
	p.command.Env = append(os.Environ(), roleVariable+"=guard", steadyVariable+"="+steady,
		diaryVariable+"="+f.diary(), Guarding(f.record()))
	if killed != "" {
		p.command.Env = append(p.command.Env, killVariable+"="+killed)
	}
	p.command.Stdout, p.command.Stderr = f.Output(), f.Output()
	if err := p.command.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = p.command.Process.Kill() })
	return p
}

// read returns the diary. It replaces the process id of the child.
func (f *folder) read() (diary string, child int) {
	f.Helper()
	data, err := os.ReadFile(f.diary())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if words[0] == "child" {
			if child, err = strconv.Atoi(words[1]); err != nil {
				f.Fatal(err)
			}
			words = append(words[:1], words[2:]...)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(lines, ", "), child
}

// eventually waits until something is so.
func (f *folder) eventually(what string, is func() bool) {
	f.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.Fatal("not so: " + what)
		}
	}
}

// gone tells whether a process has ended. Nobody may have waited for it yet.
func gone(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(data), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// TestProcesses has whole trials, in which the process executes the other executable under the
// same process id.
func TestProcesses(t *testing.T) {
	old, next := images(t)
	for does, test := range map[string]struct {
		diary, message string
		stage          upgrades.Stage
	}{
		"work": {"child new work, ready, terminated, installed new", "", upgrades.Upgraded},
		// The authorities were replaced, for example.
		"anew":  {"child new anew, child new anew, ready, terminated, installed new", "", upgrades.Upgraded},
		"fail":  {"child new fail, installed old", "(exit status 1):\nstore: the disk is full", upgrades.Failed},
		"panic": {"child new panic, installed old", "(exit status 2):\npanic: no such page", upgrades.Failed},
	} {
		t.Run(does, func(t *testing.T) {
			f := newFolder(t, old, next)
			f.begin()
			if err := f.run(does, "1ms", "").command.Wait(); err != nil {
				t.Error(err)
			}
			if diary, _ := f.read(); diary != test.diary {
				t.Errorf("got %s, want %s", diary, test.diary)
			}
			if r := f.resume(); r.Report.Stage != test.stage || !strings.Contains(r.Report.Message, test.message) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestKilled kills the Guard at each step. The new executable dies with it. The installed one,
// whichever it is, knows what to do.
func TestKilled(t *testing.T) {
	old, next := images(t)
	for _, test := range []struct {
		does, step string
		want       upgrades.Stage
		installed  string
	}{
		{"work", "start", upgrades.Trying, "old"},
		{"work", "run", upgrades.Trying, "old"},
		{"work", "ready", upgrades.Trying, "old"},
		{"work", "install", upgrades.Trying, "old"},
		{"work", "note", upgrades.Upgraded, "new"},
		{"work", "end", upgrades.Upgraded, "new"},
		{"fail", "fail", upgrades.Trying, "old"},
		{"fail", "back", upgrades.Failed, "old"},
	} {
		t.Run(test.does+"/"+test.step, func(t *testing.T) {
			f := newFolder(t, old, next)
			f.begin()
			p := f.run(test.does, "1ms", test.step)
			_ = p.command.Wait()
			if status, ok := p.command.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
				t.Errorf("it ended in another way: %v", p.command.ProcessState)
			}
			if _, child := f.read(); child != 0 {
				f.eventually("the new executable is dead", func() bool { return gone(child) })
			}
			if r := f.resume(); r.Report.Stage != test.want || f.now() != test.installed {
				t.Errorf("the %s executable runs, and finds %+v", f.now(), r)
			}
		})
	}
}

// TestAttempts interrupts trials until there is no next one.
func TestAttempts(t *testing.T) {
	old, next := images(t)
	f := newFolder(t, old, next)
	for attempt := 1; attempt <= MaxAttempts; attempt++ {
		if r := f.begin(); r.Attempts != attempt {
			t.Errorf("attempt %d counts as %d", attempt, r.Attempts)
		}
		_ = f.run("work", "1ms", "ready").command.Wait()
		want := upgrades.Trying
		if attempt == MaxAttempts {
			want = upgrades.Failed
		}
		if r := f.resume(); r.Report.Stage != want || r.Attempts != attempt {
			t.Errorf("after attempt %d: %+v", attempt, r)
		}
	}
	if r := f.resume(); r.Report.Stage != upgrades.Failed || !strings.Contains(r.Report.Message, "interrupted 3 times") {
		t.Errorf("later: %+v", r)
	}
	// Another order has attempts of its own.
	f.order.ID = "2"
	if r := f.begin(); r.Attempts != 1 {
		t.Errorf("another order: %+v", r)
	}
}

// TestStopped has a service manager that stops kedge during a trial.
func TestStopped(t *testing.T) {
	old, next := images(t)
	for _, stop := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(stop.String(), func(t *testing.T) {
			f := newFolder(t, old, next)
			f.begin()
			p := f.run("work", "1h", "")
			for _, s := range []syscall.Signal{0, syscall.SIGHUP} {
				want := map[syscall.Signal]string{0: "child new work, ready", syscall.SIGHUP: "child new work, ready, hangup"}[s]
				if err := p.command.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				f.eventually(want, func() bool { diary, _ := f.read(); return diary == want })
			}
			if err := p.command.Process.Signal(stop); err != nil {
				t.Fatal(err)
			}
			if err := p.command.Wait(); err != nil {
				t.Error(err)
			}
			diary, child := f.read()
			if diary != "child new work, ready, hangup, terminated" || !gone(child) {
				t.Errorf("got %s, and the child is gone: %v", diary, gone(child))
			}
			if r := f.resume(); r.Report.Stage != upgrades.Trying || r.Attempts != 1 || f.now() != "old" {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// TestChild looks at what a new executable says about itself.
func TestChild(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	c := &Child{pipe: write, node: "its Node"}
	status := func(name string, state component.State) { c.Component(component.Status{Name: name, State: state}) }
	status("store", component.Waiting)
	status("store", component.Starting)
	status("host", component.Starting)
	status("store", component.Ready)
	status("host", component.Ready)
	c.Components()
	c.Node("its Node, which is\nnot Ready")
	c.Node("")
	c.Node("")
	c.Node("its Node, which is gone")
	status("store", component.Stopped)
	c.Explain(nil)
	c.Explain(errors.New("store: gone"))
	write.Close()
	got, err := io.ReadAll(read)
	const want = `waiting for store
waiting for store, host
waiting for host
waiting for its Node
waiting for its Node, which is not Ready
ready
waiting for its Node, which is gone
store: gone
`
	if err != nil || string(got) != want {
		t.Errorf("got %v and\n%s", err, got)
	}

	c = nil
	c.Components()
	c.Component(component.Status{})
	c.Node("")
	c.Explain(errors.New("gone"))
	if c.Running() || c.Inherit() != nil {
		t.Error("a kedge that is not on trial is on trial")
	}
}

// TestFromEnvironment has variables that do not lead to a Guard.
func TestFromEnvironment(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, value := range []string{"", "x", "1", "12345", strconv.Itoa(int(file.Fd()))} {
		t.Setenv(childVariable, value)
		if FromEnvironment() != nil || os.Getenv(childVariable) != "" {
			t.Errorf("%q: it is on trial", value)
		}
	}
}

// TestRecord has records that nobody has written.
func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trial.json")
	if r, err := Read(file); err != nil || r != (Record{}) {
		t.Errorf("without a record: %+v, %v", r, err)
	}
	for _, text := range []string{"", "{", `{"order":{"id":"1"}}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(file); err == nil || !strings.Contains(err.Error(), "`rm "+file+"`") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestExplain has faults of the folder of the executable, which is not the data directory.
func TestExplain(t *testing.T) {
	for fault, want := range map[error]string{
		unix.EROFS: "read-only file system: mount it read-write", unix.ENOSPC: "free some space there", unix.EDQUOT: "free some space there", unix.EPERM: "chattr -i",
	} {
		err := Explain(&fs.PathError{Op: "open", Path: "/usr/local/bin/.kedge-0a", Err: fault})
		if !errors.Is(err, fault) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "data-dir") {
			t.Errorf("got %v", err)
		}
	}
	if err := Explain(fs.ErrClosed); err != fs.ErrClosed {
		t.Errorf("got %v", err)
	}
}
