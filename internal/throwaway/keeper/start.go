package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/base/datadir"
)

// tokenPause is how often the keeper looks whether the first server has made the join tokens.
const tokenPause = 10 * time.Millisecond

// startAll starts kedge on all nodes, and waits until all are ready. Later faults go to failed.
func (k *keeper) startAll(ctx context.Context, failed chan error) error {
	began := time.Now()
	several := k.Nodes > 1
	arguments := []string{"server"}
	if k.Servers > 1 {
		arguments = append(arguments, "--cluster-init")
	}
	if several {
		if err := k.agentSecret(); err != nil {
			return err
		}
		arguments = append(arguments, "--agent-token-file="+agentTokenFile)
	}
	first := k.start(1, failed, arguments...)
	dir := datadir.Dir(config.Default().DataDir)
	for number := 2; number <= k.Nodes; number++ {
		command, token := "agent", dir.AgentToken()
		if number <= k.Servers {
			command, token = "server", dir.ServerToken()
		}
		if err := k.giveToken(ctx, number, token, first, failed); err != nil {
			return err
		}
		arguments := []string{command, "--server=https://" + k.api().String(), "--token-file=" + joinTokenFile}
		if command == "server" {
			arguments = append(arguments, "--agent-token-file="+agentTokenFile)
		}
		k.start(number, failed, arguments...)
	}
	var group errgroup.Group
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, d := range k.daemons {
		group.Go(func() error {
			select {
			case <-d.ready:
				k.step(d.name, began)
				return nil
			case <-stop.Done():
				return context.Cause(stop)
			case err := <-failed:
				cancel(err)
				return err
			}
		})
	}
	return group.Wait()
}

// start starts kedge on a node.
func (k *keeper) start(number int, failed chan error, arguments ...string) *daemon {
	name := k.NodeName(number)
	d := &daemon{
		host: k.nodes[number-1], name: name, log: filepath.Join(k.store.Logs(k.Cluster), name+".log"), ready: make(chan struct{}),
		args: arguments, environment: k.environment(),
	}
	k.daemons = append(k.daemons, d)
	go func() {
		if err := d.run(); err != nil {
			failed <- err
		}
	}()
	return d
}

// agentSecret gives the servers the secret with which agents join, and no server.
func (k *keeper) agentSecret() error {
	secret := rand.Text()
	for number := 1; number <= k.Servers; number++ {
		path := k.nodes[number-1].Path(agentTokenFile)
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			secret = strings.TrimSpace(string(text))
			continue
		}
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = datadir.WriteFile(path, []byte(secret+"\n"), 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the secret of agents: %w", err)
		}
	}
	return nil
}

// giveToken copies a join token from the first server to another node, as soon as the server has made it.
func (k *keeper) giveToken(ctx context.Context, number int, file string, first *daemon, failed chan error) error {
	for {
		token, err := os.ReadFile(first.host.Path(file))
		if err == nil {
			path := k.nodes[number-1].Path(joinTokenFile)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return fmt.Errorf("write join token: %w", err)
			}
			return datadir.WriteFile(path, token, 0o600)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read join token: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-time.After(tokenPause):
		}
	}
}
