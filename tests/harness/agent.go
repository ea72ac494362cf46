package harness

import (
	"context"

	"k8s.io/client-go/kubernetes"
)

// Agent is a `kedge agent` on a host.
type Agent struct {
	*daemon
	server *Server
}

// StartAgent starts `kedge agent` with args, for the cluster of a server whose API was ready, and does
// not wait for it. args take precedence, for example with another token. If the test fails, it shows
// the end of the agent's log.
func (h *Host) StartAgent(t T, server *Server, args ...string) *Agent {
	t.Helper()
	address := server.Host.Address.String() + ":6443"
	args = append([]string{"--server=https://" + address, "--token=" + server.Token()}, args...)
	return &Agent{h.startDaemon(t, "agent", args...), server}
}

// WaitReady waits until the API says that the agent's node is Ready.
func (a *Agent) WaitReady() {
	a.t.Helper()
	a.waitFor("the node of "+a.Host.Name+" to be Ready", func() error {
		return a.server.ask(func(ctx context.Context, client kubernetes.Interface) error {
			return a.nodeReady(ctx, client, a.Host.Name)
		})
	})
}

// Restart stops the agent in order, starts it and waits until it is ready.
func (a *Agent) Restart() {
	a.t.Helper()
	a.Terminate()
	a.Start()
	a.WaitReady()
}
