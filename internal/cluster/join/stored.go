package join

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// StoredKey is the key in a shared datastore that holds the cluster's secrets, encrypted
// under the cluster's token. It is outside the API server's keys.
const StoredKey = "/kedge/bootstrap"

// inStore is what messages call the shared datastore.
const inStore = "at datastore-endpoint"

// stored is the value of StoredKey.
type stored struct {
	// Authority is the hash of the servers' authority, which identifies the cluster.
	Authority string `json:"authority"`
	Sealed
}

// TakeStored takes the cluster's secrets from a datastore that servers share, except
// those that are here. It tells whether the datastore had any. It fails if a secret that
// is here differs from the datastore's, or if the token cannot decrypt them. configured
// is the token in the configuration, or empty.
func TakeStored(ctx context.Context, store clientv3.KV, dir datadir.Dir, configured string) (bool, error) {
	answer, err := store.Get(ctx, StoredKey)
	if err != nil {
		return false, fmt.Errorf("ask the datastore for the cluster's secrets: %w", err)
	}
	if len(answer.Kvs) == 0 {
		return false, nil
	}
	var there stored
	if err := json.Unmarshal(answer.Kvs[0].Value, &there); err != nil {
		return false, fmt.Errorf("decode the cluster's secrets %s: %w", inStore, err)
	}
	secret, err := storedSecret(dir, configured)
	if err != nil {
		return false, err
	}
	// The token in the configuration or in the file may have been replaced since.
	token, err := storedToken(ctx, store, dir)
	if err != nil {
		return false, err
	}
	if token.Secret != "" {
		secret = token.Secret
	}
	if secret == "" {
		return false, fmt.Errorf("there is a cluster %s already: give this server the cluster's token with --token or --token-file; "+
			"it is in server/token in the data directory of the cluster's first server", inStore)
	}
	own, err := pki.Secrets(dir)
	if err != nil {
		return false, err
	}
	secrets, err := there.Open(secret)
	if err != nil && there.Authority == authority(own) {
		// `kedge token rotate` has replaced the token, or the configuration has another one.
		logrus.WithField("component", "join").Info("The cluster's secrets in the datastore are now encrypted under the new token: servers that join need that one")
		return true, resealStored(ctx, store, dir, secret)
	}
	if err != nil {
		return false, fmt.Errorf("there is a cluster %s already, and this server's token is not the cluster's; give it the one in server/token "+
			"in the data directory of the cluster's first server: %w", inStore, err)
	}
	if names := drifted(own, secrets); len(names) > 0 {
		return false, fmt.Errorf("in %s these files are not those of the cluster %s: %s. To join that cluster, or if this server was off while the cluster's certificate authorities were replaced, move the folder away. "+
			"To keep this server's own cluster, give it a database of its own", dir.ServerTLS(), inStore, strings.Join(names, ", "))
	}
	for name := range own {
		delete(secrets, name)
	}
	return true, pki.KeepSecrets(dir, secrets)
}

// GiveStored puts this cluster's secrets into a datastore that has no cluster yet,
// encrypted under the token in this server's file. It fails if another server was faster.
func GiveStored(ctx context.Context, store clientv3.KV, dir datadir.Dir) error {
	secret, err := storedSecret(dir, "")
	if err != nil {
		return err
	}
	own, err := pki.Secrets(dir)
	if err != nil {
		return err
	}
	text, err := seal(secret, own)
	if err != nil {
		return err
	}
	answer, err := store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(StoredKey), "=", 0)).
		Then(clientv3.OpPut(StoredKey, text)).Commit()
	if err != nil {
		return fmt.Errorf("write the cluster's secrets to the datastore: %w", err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("another server has started a cluster %s at the same moment: move %s away, and start this server again with the other server's token",
			inStore, dir.ServerTLS())
	}
	return nil
}

// seal returns the value for StoredKey.
func seal(secret string, own map[string][]byte) (string, error) {
	sealed, err := Seal(secret, own)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(stored{authority(own), sealed})
	if err != nil {
		return "", fmt.Errorf("encode the cluster's secrets: %w", err)
	}
	return string(text), nil
}

// resealStored encrypts the secrets at StoredKey again, if there are any. It uses the
// token that the servers share, or else secret, and includes the authorities that the
// servers have or are to have.
func resealStored(ctx context.Context, store clientv3.KV, dir datadir.Dir, secret string) error {
	for {
		answer, err := store.Get(ctx, StoredKey)
		if err != nil || len(answer.Kvs) == 0 {
			return err
		}
		token, err := storedToken(ctx, store, dir)
		if err != nil {
			return err
		}
		own, err := pki.Secrets(dir)
		if err != nil {
			return err
		}
		agreed, err := agreedAuthorities(ctx, store, dir)
		if err != nil {
			return err
		}
		maps.Copy(own, agreed)
		text, err := seal(cmp.Or(token.Secret, secret), own)
		if err != nil {
			return err
		}
		// A transaction, because kine's plain Put (pkg/server/put.go) silently changes
		// nothing if the key was written since it looked.
		//upstream:relies-on github.com/k3s-io/kine/pkg/server/put.go LimitedServer.Put
		put, err := store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(StoredKey), "=", answer.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(StoredKey, text)).Else(clientv3.OpGet(StoredKey)).Commit()
		if err != nil {
			return fmt.Errorf("write the cluster's secrets to the datastore: %w", err)
		}
		if put.Succeeded {
			return nil
		}
		// Another server was faster. It may have written values that were replaced since.
	}
}

// authority returns the value of stored.Authority for own secrets.
func authority(own map[string][]byte) string {
	hash := sha256.Sum256(bytes.TrimSpace(own["server-ca.crt"]))
	return hex.EncodeToString(hash[:])
}

// storedSecret returns the secret of the configured token, or else of the token in this
// server's file, or else an empty one.
func storedSecret(dir datadir.Dir, configured string) (string, error) {
	if configured == "" {
		kept, err := os.ReadFile(dir.ServerToken())
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("read join token: %w", err)
		}
		configured = strings.TrimSpace(string(kept))
	}
	return tokenSecret(configured, ServerUser, nil)
}
