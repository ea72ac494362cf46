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

// StoredKey is where a datastore that servers share has the cluster's secrets,
// encrypted under its token. It is not below the API server's keys.
const StoredKey = "/kedge/bootstrap"

// inStore is what messages call the other side.
const inStore = "at datastore-endpoint"

// stored is what is at StoredKey.
type stored struct {
	// Authority is a hash of the certificate that the cluster is known by.
	Authority string `json:"authority"`
	Sealed
}

// TakeStored takes what all servers of a cluster have alike from a datastore that
// they share, unless it is here, and tells whether there was any. Where both have
// it, it must be the same. configured is the token that the user gave, if any.
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
	// The configuration may have a token that was replaced, or the file.
	token, err := storedToken(ctx, store, dir)
	if err != nil {
		return false, err
	}
	if token.Secret != "" {
		secret = token.Secret
	}
	if secret == "" {
		return false, fmt.Errorf("there is a cluster %s already: give this server its token, by --token or --token-file; "+
			"it is in server/token in the data directory of the server that began it", inStore)
	}
	own, err := pki.Secrets(dir)
	if err != nil {
		return false, err
	}
	secrets, err := there.Open(secret)
	if err != nil && there.Authority == authority(own) {
		// `kedge token rotate`, or another token in the configuration.
		logrus.WithField("component", "join").Info("The cluster's secrets in the datastore are encrypted under the new token now: further servers need that one")
		return true, resealStored(ctx, store, dir, secret)
	}
	if err != nil {
		return false, fmt.Errorf("there is a cluster %s already, and this is not its token, which is in server/token "+
			"in the data directory of the server that began it: %w", inStore, err)
	}
	if names := drifted(own, secrets); len(names) > 0 {
		return false, fmt.Errorf("in %s these files are not those of the cluster %s: %s. To join that cluster, or if this server was off while its authorities were replaced, move the folder away; "+
			"to go on with this one, give it a database of its own", dir.ServerTLS(), inStore, strings.Join(names, ", "))
	}
	for name := range own {
		delete(secrets, name)
	}
	return true, pki.KeepSecrets(dir, secrets)
}

// GiveStored gives a datastore in which there is no cluster yet the secrets of
// this one, under its token, which is kept.
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
		return fmt.Errorf("give the datastore the cluster's secrets: %w", err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("another server began a cluster %s at the same moment: move %s away, and start this one again with the token of that one",
			inStore, dir.ServerTLS())
	}
	return nil
}

// seal returns what is to be at StoredKey.
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

// resealStored encrypts the secrets that are at StoredKey, if any, anew: under the token
// that servers share by now, or else the given one, with the authorities that they have
// or are to have.
func resealStored(ctx context.Context, store clientv3.KV, dir datadir.Dir, secret string) error {
	ctx, cancel := context.WithTimeout(ctx, sealPatience)
	defer cancel()
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
		// A plain Put of kine's (pkg/server/put.go) changes nothing, and says nothing,
		// if anything else was written since.
		//upstream:relies-on github.com/k3s-io/kine/pkg/server/put.go LimitedServer.Put
		put, err := store.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(StoredKey), "=", answer.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(StoredKey, text)).Else(clientv3.OpGet(StoredKey)).Commit()
		if err != nil {
			return fmt.Errorf("give the datastore the cluster's secrets: %w", err)
		}
		if put.Succeeded {
			return nil
		}
		// Another server was faster, with what may have been replaced since it looked.
	}
}

// authority is stored.Authority of own secrets.
func authority(own map[string][]byte) string {
	hash := sha256.Sum256(bytes.TrimSpace(own["server-ca.crt"]))
	return hex.EncodeToString(hash[:])
}

// storedSecret is the secret of the configured token, or else of the kept one, or
// else empty.
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
