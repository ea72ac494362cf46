package encryption

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiserver/pkg/storage/value"
)

// errChanged says that another server has changed the keys at the same moment.
var errChanged = errors.New("another server has changed the keys at the same moment")

// known is the keyring in the datastore at a revision, which is 0 if there is
// none.
type known struct {
	keyring
	revision    int64
	transformer value.Transformer
}

// load reads the keys from the datastore. If several servers have the datastore,
// a quorum of them confirms the answer, so it is not older than the question.
func (e *Encryption) load(ctx context.Context) (known, error) {
	answer, err := e.client.Get(ctx, KeyringKey)
	if err != nil {
		return known{}, fmt.Errorf("ask the datastore for the keys of Secrets: %w", err)
	}
	if len(answer.Kvs) == 0 {
		return e.learn(known{}), nil
	}
	there := answer.Kvs[0]
	e.mu.Lock()
	last := e.known
	e.mu.Unlock()
	if last.revision >= there.ModRevision {
		return last, nil
	}
	opened, err := open(ctx, e.under, there.Value)
	if err != nil {
		return known{}, err
	}
	return e.learn(known{keyring: opened, revision: there.ModRevision}), nil
}

// learn remembers what the datastore has, unless something newer is known.
func (e *Encryption) learn(found known) known {
	found.transformer = found.keyring.transformer()
	e.mu.Lock()
	defer e.mu.Unlock()
	if found.revision >= e.known.revision {
		e.known = found
	}
	return e.known
}

// replace replaces the keyring before by next. It returns errChanged if another
// keyring is there now.
func (e *Encryption) replace(ctx context.Context, before known, next keyring) (known, error) {
	sealed, err := next.seal(ctx, e.under)
	if err != nil {
		return known{}, err
	}
	answer, err := putIf(ctx, e.client, KeyringKey, string(sealed), before.revision)
	if err != nil {
		return known{}, fmt.Errorf("write the keys of Secrets to the datastore: %w", err)
	}
	if !answer.Succeeded {
		return known{}, errChanged
	}
	return e.learn(known{keyring: next, revision: answer.Header.Revision}), nil
}

// putIf replaces the value that a key has at a revision. With revision 0 it
// creates the key.
func putIf(ctx context.Context, store clientv3.KV, name, text string, revision int64) (*clientv3.TxnResponse, error) {
	transaction := store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(name), "=", revision)).Then(clientv3.OpPut(name, text))
	if revision > 0 {
		// kine recognizes changes only in this form.
		transaction = transaction.Else(clientv3.OpGet(name))
	}
	return transaction.Commit()
}
