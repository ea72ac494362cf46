package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

const (
	// restartPause is how long a kedge that has ended stays so. systemd's unit has the same.
	restartPause = 2 * time.Second
	// stopPatience is how long a kedge may take to stop.
	stopPatience = 15 * time.Second
	// collector lets the heap grow to three times what is in use before Go collects garbage, and not only to one and a half
	// times, as kedge does at its start. So a start takes a quarter less time. The memory of a temporary cluster is free
	// again soon.
	collector = "GOGC=200"
	// logTail is how much of a log a message shows, in bytes.
	logTail = 4 << 10
)

// daemon is a kedge that runs on a node until the node ends.
type daemon struct {
	host *hosts.Host
	name string
	// args and environment are those of kedge.
	args, environment []string
	log               string
	// ready is closed when kedge has said that it is ready for the first time.
	ready chan struct{}

	mutex    sync.Mutex
	cmd      *hosts.Cmd
	stopping bool
}

// run runs kedge, and starts it again whenever it ends, until stop. Before kedge is ready for the first
// time, its end is an error.
func (d *daemon) run() error {
	socket, err := d.listen()
	if err != nil {
		return err
	}
	defer socket.Close()
	go d.hear(socket)
	for {
		if err := d.start(); err != nil {
			return err
		}
		ended := d.cmd.Wait()
		d.mutex.Lock()
		stopping := d.stopping
		d.mutex.Unlock()
		if stopping {
			return nil
		}
		select {
		case <-d.ready:
		default:
			return fmt.Errorf("kedge on %s ended before it was ready (%w). The end of its log:\n%s", d.name, orStatus(ended), tail(d.log))
		}
		time.Sleep(restartPause)
	}
}

// orStatus names the end of a process that ended without an error.
func orStatus(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

func (d *daemon) start() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.stopping {
		return nil
	}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", d.name, err)
	}
	defer log.Close()
	d.cmd = d.host.Command(context.Background(), Program, d.args...)
	d.cmd.Env = append(d.environment, "NOTIFY_SOCKET="+notifySocket)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("start kedge on %s: %w", d.name, err)
	}
	return nil
}

// stop tells kedge to stop, and waits until it has.
func (d *daemon) stop() {
	d.mutex.Lock()
	d.stopping = true
	cmd := d.cmd
	d.mutex.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopPatience):
	}
}

// listen opens the socket on which kedge says that it is ready.
func (d *daemon) listen() (conn net.PacketConn, err error) {
	halted := d.host.Do(func() { conn, err = net.ListenPacket("unixgram", notifySocket) })
	if err = errors.Join(halted, err); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", d.name, err)
	}
	return conn, nil
}

func (d *daemon) hear(socket net.PacketConn) {
	buffer := make([]byte, 4096)
	for said := false; ; {
		n, _, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		if !said && slices.Contains(strings.Split(string(buffer[:n]), "\n"), "READY=1") {
			said = true
			close(d.ready)
		}
	}
}

// passed are the variables of the machine that nodes get, too: they say how to reach the Internet.
var passed = []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "TZ"}

// Environment returns the environment of a kedge on a node. It has no setting of kedge's, because those of
// the machine are for the machine.
func Environment(machine []string) []string {
	environment := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	for _, variable := range machine {
		if name, _, _ := strings.Cut(variable, "="); slices.Contains(passed, name) {
			environment = append(environment, variable)
		}
	}
	return environment
}

// environment returns the environment of a kedge of this cluster.
func (k *keeper) environment() []string {
	environment := Environment(os.Environ())
	if k.Temporary {
		environment = append(environment, collector)
	}
	return environment
}

// tail returns the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(text) > logTail {
		text = text[len(text)-logTail:]
		if _, rest, found := strings.Cut(string(text), "\n"); found {
			text = []byte(rest)
		}
	}
	return strings.TrimSpace(string(text)) + "\n(" + filepath.Base(path) + ")"
}
