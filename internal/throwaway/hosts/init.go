package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// initVariable tells an executable that it is the first process of a host. Its value is the host's
// Setup.
const initVariable = "KEDGE_HOST_SETUP"

// Setup is what a host's first process does before anything else runs on the host.
type Setup struct {
	Hostname string
	// Mounts are made in this order, in a mount namespace in which nothing propagates to the
	// machine.
	Mounts []Mount
	// Unmount are mounts that are only needed while Mounts are made.
	Unmount []string
	// Root is the mount that becomes the root of the host. If it is empty, the host keeps the
	// machine's.
	Root string
	// Remove are folders that are removed at the end. Files and Links are made then. Their paths are those
	// of the host.
	Remove []string
	Files  map[string]string
	Links  map[string]string
	// Command runs then, if it is not empty, and the host ends with it. Environment is the whole environment
	// of the command.
	Command, Environment []string
}

// Mount is a call of mount(2). A target that does not exist is made, and so are Folders.
type Mount struct {
	Source, Target, Kind string
	Flags                uintptr
	Data                 string
	Folders              []string
}

// Overlay returns a mount on which writes to target do not change the folder lower of the machine. The
// changes are in the folder layers.
func Overlay(lower, target, layers string) Mount {
	upper, work := filepath.Join(layers, "upper"), filepath.Join(layers, "work")
	return Mount{
		Source: "overlay", Target: target, Kind: "overlay",
		Data:    fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work),
		Folders: []string{upper, work},
	}
}

// init makes this process the first process of a host, if it was started as that. It does so here and not in main,
// because the packages of Kubernetes, which Go initialises after this one, would take most of the time that a host
// needs to start.
func init() {
	if os.Getenv(initVariable) != "" {
		runFirstProcess()
	}
}

// runFirstProcess is the main function of a host's first process. It writes "ok" or an error to file
// descriptor 3, and then reaps orphans until it is killed.
func runFirstProcess() {
	text := os.Getenv(initVariable)
	os.Unsetenv(initVariable)
	// Otherwise the report would only end with the command.
	unix.CloseOnExec(3)
	report := os.NewFile(3, "report")
	var setup Setup
	err := json.Unmarshal([]byte(text), &setup)
	if err == nil {
		err = setup.do()
	}
	if err != nil {
		fmt.Fprint(report, err)
		os.Exit(1)
	}
	command := 0
	if len(setup.Command) > 0 {
		if command, err = setup.start(); err != nil {
			fmt.Fprint(report, err)
			os.Exit(1)
		}
	}
	fmt.Fprint(report, "ok")
	report.Close()

	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	// A child may have ended before Notify.
	reap(command)
	for range children {
		reap(command)
	}
}

// firstProcess returns the command that is the first process of a host. It writes to report. It has no other variable
// of this process: these may be secrets of a CI job, and the host's programs can look at its first process.
func (s Setup) firstProcess(report *os.File) (*exec.Cmd, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{initVariable + "=" + string(text)}
	cmd.ExtraFiles = []*os.File{report}
	return cmd, nil
}

// start starts Command, and returns the ID of its process.
func (s Setup) start() (int, error) {
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.Environment, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", s.Command[0], err)
	}
	return cmd.Process.Pid, nil
}

// reap takes note of all children that have ended. If command is one of them, it ends this process.
func reap(command int) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if pid <= 0 && err != unix.EINTR {
			return
		}
		switch {
		case pid != command || pid <= 0:
		case status.Signaled():
			os.Exit(128 + int(status.Signal()))
		default:
			os.Exit(status.ExitStatus())
		}
	}
}

func (s Setup) do() error {
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	// Mounts on the host must not propagate to the machine.
	if err := (Mount{Target: "/", Flags: unix.MS_REC | unix.MS_PRIVATE}).Do(); err != nil {
		return err
	}
	for _, m := range s.Mounts {
		if err := m.Do(); err != nil {
			return err
		}
	}
	for _, target := range s.Unmount {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	if s.Root != "" {
		if err := pivot(s.Root); err != nil {
			return err
		}
	}
	// Mounts within the host are shared, as on a real machine, because the kubelet needs that. This
	// comes last, or the unmount would be shared too.
	if err := (Mount{Target: "/", Flags: unix.MS_REC | unix.MS_SHARED}).Do(); err != nil {
		return err
	}
	return s.writeFiles()
}

// pivot makes a mount the root and detaches the old root: see pivot_root(2).
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root to %s: %w", root, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	return os.Chdir("/")
}

func (s Setup) writeFiles() error {
	for _, folder := range s.Remove {
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	for file, text := range s.Files {
		// The file may be a link, for example to a file of systemd's.
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for link, target := range s.Links {
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}

// ReadOnly returns the mounts that show a file or a folder of the machine, which the host cannot change.
func ReadOnly(source, target string) []Mount {
	return []Mount{
		{Source: source, Target: target, Flags: unix.MS_BIND | unix.MS_REC},
		{Target: target, Flags: unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | restrictions(source)},
	}
}

// restrictions returns what the mount of a path does not allow. Without them, a second mount would allow it, and in a
// user namespace the kernel would refuse that: mount_namespaces(7).
func restrictions(path string) uintptr {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0 // The mount itself says what is wrong.
	}
	return uintptr(stat.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
}

// Do makes the mount in the mount namespace of the calling thread.
func (m Mount) Do() error {
	if err := m.prepare(); err != nil {
		return err
	}
	if err := unix.Mount(m.Source, m.Target, m.Kind, m.Flags, m.Data); err != nil {
		return fmt.Errorf("mount %s: %w", strings.Join(strings.Fields(fmt.Sprintf("%s %s on %s %s", m.Kind, m.Source, m.Target, m.Data)), " "), err)
	}
	return nil
}

// prepare makes the folders of the mount, and its target.
func (m Mount) prepare() error {
	for _, folder := range m.Folders {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	bind := m.Flags&unix.MS_BIND != 0
	if !bind && m.Kind == "" || m.Flags&unix.MS_REMOUNT != 0 {
		return nil // This changes a mount that exists.
	}
	if info, err := os.Stat(m.Source); bind && err == nil && !info.IsDir() {
		if err := os.MkdirAll(filepath.Dir(m.Target), 0o755); err != nil {
			return err
		}
		file, err := os.OpenFile(m.Target, os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		return file.Close()
	}
	return os.MkdirAll(m.Target, 0o755)
}
