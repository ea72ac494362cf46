package session

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
	"github.com/kedge-dev/kedge/internal/throwaway/keeper"
)

// LoadImages gives the images of archives to all nodes of a cluster that is Ready. It returns the names of
// the images.
func LoadImages(ctx context.Context, cluster clusters.Known, archives []string) ([]string, error) {
	var names []string
	for _, archive := range archives {
		output := make([]string, len(cluster.FirstProcesses))
		var group errgroup.Group
		for i, pid := range cluster.FirstProcesses {
			group.Go(func() (err error) {
				output[i], err = loadImage(ctx, pid, archive)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, fmt.Errorf("load images of %s: %w", archive, err)
		}
		names = append(names, strings.Fields(output[0])...)
	}
	return names, nil
}

// loadImage gives an archive to one node, and returns what `kedge image import` prints there.
func loadImage(ctx context.Context, pid int, archive string) (string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer file.Close()
	node, err := hosts.Enter(pid)
	if err != nil {
		return "", err
	}
	defer node.Halt()
	var output, faults strings.Builder
	cmd := node.Command(ctx, keeper.Program, "image", "import", "-")
	cmd.Env = keeper.Environment(os.Environ())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = file, &output, &faults
	if err = cmd.Start(); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.TrimPrefix(faults.String(), "kedge: ")))
	}
	return output.String(), nil
}
