package cli

import (
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/kedge-dev/kedge/internal/base/component"
)

// newNotifier returns a function that tells systemd a new state, see
// sd_notify(3), and does nothing where systemd did not start kedge. It takes
// NOTIFY_SOCKET out of the environment: the kubelet and the API server would
// both say READY=1 for the whole process (cmd/kubelet/app/server.go,
// k8s.io/apiserver/pkg/server/genericapiserver.go), and the kubelet would feed
// systemd's watchdog for it.
//
//upstream:relies-on k8s.io/kubernetes/cmd/kubelet/app/server.go run
//upstream:relies-on k8s.io/apiserver/pkg/server/genericapiserver.go preparedGenericAPIServer.NonBlockingRunWithContext
func newNotifier() func(state string) {
	socket := os.Getenv("NOTIFY_SOCKET")
	os.Unsetenv("NOTIFY_SOCKET")
	os.Unsetenv("WATCHDOG_USEC")
	if socket == "" {
		return func(string) {}
	}
	return func(state string) {
		connection, err := net.Dial("unixgram", socket)
		if err == nil {
			defer connection.Close()
			_, err = connection.Write([]byte(state))
		}
		if err != nil {
			logrus.WithError(err).Warn("notify systemd")
		}
	}
}

// unitStatus keeps the line of a unit that `systemctl status` shows.
type unitStatus struct {
	notify func(state string)

	mu     sync.Mutex
	ready  bool
	faults map[string]string
}

func newUnitStatus(notify func(state string)) *unitStatus {
	return &unitStatus{notify: notify, faults: map[string]string{}}
}

// onReady tells systemd that kedge is ready.
func (u *unitStatus) onReady() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ready = true
	u.notify("READY=1\nSTATUS=" + u.lineLocked())
}

// onFault tells systemd what is wrong with a component.
func (u *unitStatus) onFault(s component.Status) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if delete(u.faults, s.Name); s.Fault != "" {
		u.faults[s.Name] = s.Fault
	}
	u.notify("STATUS=" + u.lineLocked())
}

// lineLocked returns the line: the faults, and else whether kedge is ready.
func (u *unitStatus) lineLocked() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(u.faults)) {
		parts = append(parts, name+": "+strings.ReplaceAll(u.faults[name], "\n", " "))
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, "; ")
	case u.ready:
		return "ready"
	}
	return "starting"
}
