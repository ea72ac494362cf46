package encryption

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/kedge-dev/kedge/internal/base/loop"
)

const (
	// commitTime is how long after its end a request's write may still be on its
	// way to the disk.
	commitTime = 10 * time.Second
	// look is how often the Keeper checks whether the servers agree, and repeats
	// a change that failed.
	look = 5 * time.Second
	// reminder is the least time between two log lines about a waiting change.
	reminder = 10 * time.Minute
	// page is how many Secrets are read at a time. Each may be as large as a
	// mebibyte.
	page = 32
)

// Keeper completes changes of the keys. It is an election.Loops: one server of a
// cluster runs it.
type Keeper struct {
	*Encryption
	// settle returns how long a request that uses the earlier keys may take.
	settle func() time.Duration
}

// NewKeeper returns the Keeper of an Encryption. requestTimeout returns the API
// server's timeout; it is called only when a change needs it.
func NewKeeper(e *Encryption, requestTimeout func() time.Duration) *Keeper {
	return &Keeper{Encryption: e, settle: func() time.Duration { return requestTimeout() + commitTime }}
}

// Lead implements election.Loops. At rest it waits for a change of the keys.
func (k *Keeper) Lead(ctx context.Context, ready func()) error {
	ready()
	defer k.wait("")
	var said time.Time
	for k.cfg.Theirs == "" {
		revision, err := k.advance(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			k.wait("")
			if err = k.awaitChange(ctx, revision); err == nil {
				continue
			}
		case errors.Is(err, errChanged):
			continue
		}
		k.wait(err.Error())
		if time.Since(said) > reminder {
			said = time.Now()
			k.log.Warnf("Secrets are stored as before until this is solved: %v", err)
		}
		_ = loop.Sleep(ctx, look)
	}
	<-ctx.Done()
	return nil
}

// awaitChange waits until the keys are newer than revision.
func (k *Keeper) awaitChange(ctx context.Context, revision int64) error {
	answer, err := k.client.Get(ctx, KeyringKey)
	if err != nil || len(answer.Kvs) > 0 && answer.Kvs[0].ModRevision != revision {
		return err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	// The watch does not begin at revision, which may be compacted.
	if _, ok := <-k.client.Watch(watching, KeyringKey, clientv3.WithRev(answer.Header.Revision+1)); !ok {
		_ = loop.Sleep(ctx, look)
	}
	return nil
}

// wait notes what a change waits for.
func (e *Encryption) wait(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = what
}

// advance brings the keys and the Secrets to the wanted state. It returns the
// resulting revision of the keys.
func (k *Keeper) advance(ctx context.Context) (int64, error) {
	keys, err := k.load(ctx)
	if err != nil {
		return 0, err
	}
	if keys.encrypts() != k.cfg.Enabled {
		if err := k.agree(ctx); err != nil {
			return 0, err
		}
		next := keys.plain()
		if k.cfg.Enabled {
			next = keys.renewed(newKey(time.Now()))
		}
		if keys, err = k.replace(ctx, keys, next); err != nil {
			return 0, err
		}
	}
	if !keys.Pending {
		return keys.revision, nil
	}
	k.log.Info("Rewriting all Secrets, once the requests that began earlier have ended")
	k.wait("requests that began earlier have to end first")
	_ = loop.Sleep(ctx, k.settle())
	k.wait("")
	for rewritten := 1; rewritten > 0; {
		// Repeat until there is none: then no request wrote a Secret in the old
		// way any more.
		if rewritten, err = k.rewrite(ctx, keys.transformer); err != nil {
			return 0, err
		}
	}
	if keys, err = k.replace(ctx, keys, keys.rewritten()); err != nil {
		return 0, err
	}
	if keys.encrypts() {
		k.log.Infof("All Secrets are encrypted with the key %s", keys.Keys[0].Name)
	} else {
		k.log.Info("Secrets are no longer encrypted")
	}
	return keys.revision, nil
}

// rewrite rewrites each Secret that is not stored in the wanted way, and returns
// how many there were.
func (k *Keeper) rewrite(ctx context.Context, transformer value.Transformer) (int, error) {
	count := 0
	err := k.scan(ctx, func(name string, stored []byte, revision int64) error {
		of := value.DefaultContext(name)
		plain, stale, err := transformer.TransformFromStorage(ctx, stored, of)
		if err != nil {
			// None of the cluster's keys can ever decrypt it.
			k.log.Errorf("Cannot decrypt %s, which stays as it is: %v", name, err)
			return nil
		}
		if !stale {
			return nil
		}
		next, err := transformer.TransformToStorage(ctx, plain, of)
		if err != nil {
			return fmt.Errorf("encrypt %s: %w", name, err)
		}
		count++
		if _, err = putIf(ctx, k.client, name, string(next), revision); err != nil {
			return fmt.Errorf("rewrite %s: %w", name, err)
		}
		// If the Secret was changed meanwhile, the next round handles it.
		return nil
	})
	return count, err
}

// scan calls do for every stored Secret.
func (e *Encryption) scan(ctx context.Context, do func(name string, stored []byte, revision int64) error) error {
	prefix := e.secretsPrefix()
	end := clientv3.GetPrefixRangeEnd(prefix)
	for from, more := prefix, true; more; {
		answer, err := e.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return fmt.Errorf("read stored Secrets: %w", err)
		}
		for _, kv := range answer.Kvs {
			if err := do(string(kv.Key), kv.Value, kv.ModRevision); err != nil {
				return err
			}
			from = string(kv.Key) + "\x00"
		}
		more = answer.More && len(answer.Kvs) > 0
	}
	return nil
}
