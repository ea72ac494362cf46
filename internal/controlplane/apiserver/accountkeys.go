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

// accountKeys are the keys by which the API server checks tokens of service accounts:
// those of its own file, and those of the file that replaces it at the next start.
// Other servers may have started with the next file already, and sign with its keys.
type accountKeys struct {
	serviceaccount.PublicKeysGetter
	// next is the path of the next file, which need not exist.
	next string
}

// useAccountKeys makes the API server check tokens by accountKeys, unless the user has
// set files of keys.
func useAccountKeys(o *options.ServerRunOptions, c *Config) error {
	accounts, file := o.Authentication.ServiceAccounts, c.Files.ServiceAccountKeyFile
	if !slices.Equal(accounts.KeyFiles, []string{file}) {
		return nil
	}
	own, err := readAccountKeys(file)
	if err != nil {
		return fmt.Errorf("read keys of service accounts: %w", err)
	}
	// Upstream refuses both (kubeapiserver/options/authentication.go, ToAuthenticationConfig).
	//upstream:relies-on k8s.io/kubernetes/pkg/kubeapiserver/options/authentication.go BuiltInAuthenticationOptions.ToAuthenticationConfig
	accounts.KeyFiles = nil
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

// GetPublicKeys implements serviceaccount.PublicKeysGetter. It reads the next file only
// for a token whose key is not in the server's own file.
func (a *accountKeys) GetPublicKeys(ctx context.Context, keyID string) []serviceaccount.PublicKey {
	keys := a.PublicKeysGetter.GetPublicKeys(ctx, keyID)
	if len(keys) > 0 && keyID != "" {
		return keys
	}
	next, err := readAccountKeys(a.next)
	if err != nil {
		return keys // usually there is no next file
	}
	return append(slices.Clip(keys), next.GetPublicKeys(ctx, keyID)...)
}
