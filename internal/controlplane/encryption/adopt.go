package encryption

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
)

// NewKeys makes the first key of a cluster whose datastore is written before any server
// runs. name and sealed are the entry of the datastore that tells servers of the key.
// under is the content of Config.KeyFile. All Secrets must be encrypted with secrets.
func NewKeys(ctx context.Context, under []byte) (name string, sealed []byte, secrets value.Transformer, err error) {
	keys := keyring{Keys: []key{newKey(time.Now())}}
	if sealed, err = keys.seal(ctx, under); err != nil {
		return "", nil, nil, err
	}
	return KeyringKey, sealed, keys.transformer(), nil
}
