package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/throwaway/clusters"
)

const (
	// endPatience is how long a keeper may take to remove what its cluster has while it runs.
	endPatience = time.Minute
	endPause    = 50 * time.Millisecond
)

// End tells the keeper of a cluster to end, and waits until it has. It returns nil if none runs.
func End(ctx context.Context, store clusters.Store, cluster clusters.Known) error {
	if cluster.State == clusters.Stopped {
		return nil
	}
	if cluster.Keeper == 0 {
		return fmt.Errorf("the cluster %s is just starting. Try again in a moment", cluster.Name)
	}
	// With a pidfd the signal cannot reach another process that has got the ID meanwhile.
	keeper, err := unix.PidfdOpen(cluster.Keeper, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("find the keeper of cluster %s: %w", cluster.Name, err)
	}
	if err == nil {
		defer unix.Close(keeper)
		// It still has the lock, so it is the keeper.
		if now, err := store.Find(cluster.Name); err != nil || now.Keeper != cluster.Keeper {
			return nil
		}
		if err := unix.PidfdSendSignal(keeper, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end the keeper of cluster %s: %w", cluster.Name, err)
		}
	}
	for began := time.Now(); ; {
		now, err := store.Find(cluster.Name)
		if errors.Is(err, clusters.ErrUnknown) || err == nil && now.State == clusters.Stopped {
			return nil
		}
		if time.Since(began) > endPatience {
			return fmt.Errorf("the keeper of cluster %s (process %d) did not end within %s. Look at its log, then run `kill -9 %d`: the next kedge cluster command removes what is left",
				cluster.Name, cluster.Keeper, endPatience, cluster.Keeper)
		}
		if err := loop.Sleep(ctx, endPause); err != nil {
			return err
		}
	}
}
