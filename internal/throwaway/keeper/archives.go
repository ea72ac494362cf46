package keeper

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
	"github.com/kedge-dev/kedge/internal/throwaway/hosts"
)

// LoadImages gives the images of archives to all nodes of a cluster that is Ready. It returns the names of
// the images.
func LoadImages(ctx context.Context, cluster clusters.Known, archives []string) ([]string, error) {
	var nodes []*hosts.Host
	for _, pid := range cluster.FirstProcesses {
		node, err := hosts.Enter(pid)
		if err != nil {
			return nil, err
		}
		defer node.Halt()
		nodes = append(nodes, node)
	}
	return loadImages(ctx, nodes, archives)
}

// loadImages gives the nodes of this keeper the images that it was told to.
func (k *keeper) loadImages(ctx context.Context) error {
	if len(k.archives) == 0 {
		return nil
	}
	began := time.Now()
	if _, err := loadImages(ctx, k.nodes, k.archives); err != nil {
		if ctx.Err() != nil {
			return errEarly
		}
		return err
	}
	k.step("images", began)
	return nil
}

func loadImages(ctx context.Context, nodes []*hosts.Host, archives []string) ([]string, error) {
	var names []string
	for _, archive := range archives {
		output := make([]string, len(nodes))
		var group errgroup.Group
		for i, node := range nodes {
			group.Go(func() (err error) {
				output[i], err = loadImage(ctx, node, archive)
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
func loadImage(ctx context.Context, node *hosts.Host, archive string) (string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer file.Close()
	var output, faults strings.Builder
	cmd := node.Command(ctx, Program, "image", "import", "-")
	cmd.Env = Environment(os.Environ())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = file, &output, &faults
	if err = cmd.Start(); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.TrimPrefix(faults.String(), "kedge: ")))
	}
	return output.String(), nil
}
