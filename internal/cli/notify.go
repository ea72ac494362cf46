package cli

import (
	"net"
	"os"

	"github.com/sirupsen/logrus"
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
