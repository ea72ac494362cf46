package apiserver

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// accountKeys are the keys by which tokens of service accounts are checked: those in a
// file, which is read once, and those in the one that replaces it at the next start.
// Other servers may have taken that already, and sign by it.
type accountKeys struct {
	serviceaccount.PublicKeysGetter
	next string
}

// useAccountKeys has the API server check tokens so, unless the user has files for that.
func useAccountKeys(o *options.ServerRunOptions, c *Config) error {
	accounts, file := o.Authentication.ServiceAccounts, c.Files.ServiceAccountKeyFile
	if !slices.Equal(accounts.KeyFiles, []string{file}) {
		return nil
	}
	own, err := readAccountKeys(file)
	if err != nil {
		return fmt.Errorf("read keys of service accounts: %w", err)
	}
	accounts.KeyFiles = nil // with both upstream refuses (kubeapiserver/options/authentication.go, ToAuthenticationConfig)
	accounts.ExternalPublicKeysGetter = &accountKeys{own, filepath.Join(c.Dir.NextServerTLS(), filepath.Base(file))}
	return nil
}

func readAccountKeys(file string) (serviceaccount.PublicKeysGetter, error) {
	keys, err := keyutil.PublicKeysFromFile(file)
	if err != nil {
		return nil, err
	}
	return serviceaccount.StaticPublicKeysGetter(keys)
}

// GetPublicKeys implements serviceaccount.PublicKeysGetter. The other file is looked for
// only if a token is of a key that is not known.
func (a *accountKeys) GetPublicKeys(ctx context.Context, keyID string) []serviceaccount.PublicKey {
	keys := a.PublicKeysGetter.GetPublicKeys(ctx, keyID)
	if len(keys) > 0 && keyID != "" {
		return keys
	}
	next, err := readAccountKeys(a.next)
	if err != nil {
		return keys // most often there is none
	}
	return append(slices.Clip(keys), next.GetPublicKeys(ctx, keyID)...)
}
