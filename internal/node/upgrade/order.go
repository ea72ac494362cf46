package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/loop"
	"github.com/kedge-dev/kedge/internal/base/trial"
	"github.com/kedge-dev/kedge/internal/base/upgrades"
	"github.com/kedge-dev/kedge/internal/cluster/executables"
)

// room is how many bytes must be left when the new executable is there.
const room = 16 << 20

// refusal is a fault that no other attempt mends.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// carryOut does what an order says. It fails only with trial.ErrBegin. If ctx ends, the order was
// withdrawn.
func (u *upgrader) carryOut(ctx context.Context, order upgrades.Order) error {
	if order.SHA256 == "" {
		return nil
	}
	if last := u.record; last.Order.ID == order.ID && last.Report.Stage != upgrades.Trying {
		u.tell(last.Report)
		return nil
	}
	candidate := trial.Candidate(u.cfg.Installed, order.SHA256)
	done, err := u.prepare(ctx, order, candidate)
	switch {
	case ctx.Err() != nil:
		_ = os.Remove(candidate)
		return nil
	case done:
		u.at(order, upgrades.Upgraded, "")
		return nil
	}
	if err == nil {
		u.record, err = trial.Begin(u.cfg.Record, order)
	}
	if err != nil {
		_ = os.Remove(candidate)
		u.at(order, upgrades.Refused, err.Error())
		u.log.Warnf("This node does not run %s: %v", order.Version, err)
		return nil
	}
	u.log.Infof("Stopping for a trial of %s, attempt %d of at most %d. Pods keep running", order.Version, u.record.Attempts, trial.MaxAttempts)
	u.tell(u.record.Report)
	patience, cancel := context.WithTimeout(ctx, lastWord)
	defer cancel()
	// The server finds out in any case, because the new kedge says it again.
	_ = u.write(patience, upgrades.FormatReport(u.record.Report))
	return fmt.Errorf("%w: %s", trial.ErrBegin, order.Version)
}

// prepare gets the new executable and checks it. It tells whether the node runs it already. Its
// errors are refusals: nothing has changed, and nothing has stopped.
func (u *upgrader) prepare(ctx context.Context, order upgrades.Order, candidate string) (done bool, err error) {
	if err := u.checkInstalled(); err != nil {
		return false, err
	}
	if order.Version == u.cfg.Version {
		digest, err := trial.Digest(u.cfg.Installed)
		if err != nil || digest == order.SHA256 {
			return err == nil, err
		}
	}
	if err := checkRoom(filepath.Dir(candidate), order.Size); err != nil {
		return false, err
	}
	u.at(order, upgrades.Fetching, "")
	if err := u.keepFetching(ctx, order, candidate); err != nil {
		return false, err
	}
	version, err := executables.Version(ctx, candidate)
	if err == nil && version != order.Version {
		err = fmt.Errorf("it is %s", version)
	}
	if err != nil {
		return false, fmt.Errorf("the executable that servers have as %s cannot be used: %w", order.Version, err)
	}
	return false, nil
}

// checkInstalled refuses to replace what does not run, and what cannot be replaced.
func (u *upgrader) checkInstalled() error {
	own, err := os.Stat(u.cfg.Own)
	if err != nil {
		return fmt.Errorf("look at the executable: %w", err)
	}
	installed, err := os.Stat(u.cfg.Installed)
	if err != nil || !os.SameFile(own, installed) {
		return fmt.Errorf("the executable at %s is not the one that runs: restart kedge on this node, and upgrade it again", u.cfg.Installed)
	}
	mounted, err := mountinfo.Mounted(u.cfg.Installed)
	if err != nil {
		return fmt.Errorf("look at the executable: %w", err)
	}
	if mounted {
		return fmt.Errorf("something is mounted at %s, such as a file of the host in a container, so it cannot be replaced: upgrade it where it comes from", u.cfg.Installed)
	}
	return nil
}

// checkRoom refuses what does not fit into a folder.
func checkRoom(folder string, size int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(folder, &disk); err != nil {
		return fmt.Errorf("look at the room in %s: %w", folder, err)
	}
	free := int64(disk.Bavail) * int64(disk.Bsize)
	if free < size+room {
		return fmt.Errorf("the new executable needs %d MiB beside the installed one in %s, and %d MiB are free: free some space, and upgrade the node again",
			(size+room)>>20, folder, free>>20)
	}
	return nil
}

// keepFetching gets the executable of an order, and tries again until it is there. Its errors are
// those that no other attempt mends, and that of ctx.
func (u *upgrader) keepFetching(ctx context.Context, order upgrades.Order, candidate string) error {
	var final refusal
	told := ""
	err := loop.Loop{Log: u.log}.Until(ctx, func(ctx context.Context) error {
		err := u.cfg.Fetch(ctx, order.SHA256, func(from io.Reader) error { return u.put(from, order, candidate) })
		if errors.As(err, &final) {
			return nil
		}
		if text := fmt.Sprint(err); err != nil && ctx.Err() == nil && text != told {
			told = text
			u.at(order, upgrades.Fetching, text)
		}
		return err
	})
	return cmp.Or(final.error, err)
}

// put writes the executable of an order. It can be executed only if it is the right one.
func (u *upgrader) put(from io.Reader, order upgrades.Order, candidate string) error {
	installed, err := os.Stat(u.cfg.Installed)
	if err != nil {
		return refusal{err}
	}
	file, err := os.OpenFile(candidate, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return refusal{fmt.Errorf("the new executable has to lie beside the installed one: %w", trial.Explain(err))}
	}
	defer file.Close()
	digest, err := executables.Write(file, from, order.Size)
	var fault *fs.PathError
	switch {
	case errors.As(err, &fault) && fault.Path == candidate:
		return refusal{fmt.Errorf("write the new executable: %w", trial.Explain(err))}
	case err != nil:
		return err
	case digest != order.SHA256:
		return fmt.Errorf("its SHA-256 digest is %s, and not %s: it is damaged, or another one", digest, order.SHA256)
	}
	if err := file.Chmod(installed.Mode().Perm()); err != nil {
		return refusal{err}
	}
	return nil
}
