package adopt

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	"sigs.k8s.io/yaml"
)

// encrypted begins the values that an API server has encrypted.
var encrypted = []byte("k8s:enc:")

// providerArgument is the argument of the API server that names a file with keys.
const providerArgument = "encryption-provider-config"

// keyFiles returns the files with the keys of k3s's Secrets: k3s's own, which may not be
// there, and the one that its configuration names, if it names one.
func (k *installation) keyFiles() (own, configured string) {
	if file := k.settings.Config.Server.APIServerArg(providerArgument); file != "" {
		configured = filepath.Join(k.root, file)
	}
	return k.server("cred", "encryption-config.json"), configured
}

// secrets returns what decrypts k3s's Secrets. It decrypts nothing if k3s does not
// encrypt them. While keys are replaced, and after encryption was turned off, a file has
// keys besides the first one, and Secrets can be encrypted with each of them.
func (k *installation) secrets() (value.Transformer, error) {
	own, configured := k.keyFiles()
	var known []value.PrefixTransformer
	var files []string
	for _, file := range []string{own, configured} {
		found, err := readKeys(file)
		if errors.Is(err, fs.ErrNotExist) && file != configured || file == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the keys of k3s's Secrets in %s: %w", file, err)
		}
		known, files = append(known, found...), append(files, file)
	}
	if len(files) == 0 {
		return nil, nil
	}
	return value.NewPrefixTransformers(fmt.Errorf("none of the keys in %s fits: put the file back that k3s used last, from a backup or from another server",
		strings.Join(files, " and ")), known...), nil
}

// readKeys reads a file of the form of kube-apiserver's --encryption-provider-config, in
// JSON or YAML, with the two providers that k3s knows.
func readKeys(file string) (known []value.PrefixTransformer, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var configuration apiserverv1.EncryptionConfiguration
	if err := yaml.Unmarshal(text, &configuration); err != nil {
		return nil, err
	}
	for _, resource := range configuration.Resources {
		for _, provider := range resource.Providers {
			found, err := transformers(provider)
			if err != nil {
				return nil, err
			}
			known = append(known, found...)
		}
	}
	return known, nil
}

// transformers returns one transformer for each key of a provider.
func transformers(provider apiserverv1.ProviderConfiguration) (found []value.PrefixTransformer, err error) {
	add := func(kind string, key apiserverv1.Key, make func(secret []byte) (value.Transformer, error)) error {
		secret, err := base64.StdEncoding.DecodeString(key.Secret)
		if err != nil {
			return fmt.Errorf("key %s: %w", key.Name, err)
		}
		transformer, err := make(secret)
		if err != nil {
			return fmt.Errorf("key %s: %w", key.Name, err)
		}
		prefix := fmt.Appendf(nil, "%s%s:v1:%s:", encrypted, kind, key.Name)
		found = append(found, value.PrefixTransformer{Prefix: prefix, Transformer: transformer})
		return nil
	}
	switch {
	case provider.AESCBC != nil:
		for _, key := range provider.AESCBC.Keys {
			err = errors.Join(err, add("aescbc", key, func(secret []byte) (value.Transformer, error) {
				block, err := aes.NewCipher(secret)
				if err != nil {
					return nil, err
				}
				return aestransformer.NewCBCTransformer(block), nil
			}))
		}
	case provider.Secretbox != nil:
		for _, key := range provider.Secretbox.Keys {
			err = errors.Join(err, add("secretbox", key, func(secret []byte) (value.Transformer, error) {
				if len(secret) != 32 {
					return nil, errors.New("it is not 32 bytes long")
				}
				return secretbox.NewSecretboxTransformer([32]byte(secret)), nil
			}))
		}
	case provider.AESGCM != nil, provider.KMS != nil:
		return nil, errors.New("they are of a provider that kedge does not know: with k3s, encrypt Secrets with aescbc or secretbox first")
	}
	return found, err
}

// decrypt returns what a stored value says. The name of the object is not needed to
// decrypt it, with the providers that k3s knows.
func decrypt(ctx context.Context, keys value.Transformer, name string, stored []byte) ([]byte, error) {
	if !bytes.HasPrefix(stored, encrypted) {
		return stored, nil
	}
	if keys == nil {
		return nil, errors.New("it is encrypted, and k3s has no file server/cred/encryption-config.json with the key: put the file back from a backup, or copy it from another server")
	}
	plain, _, err := keys.TransformFromStorage(ctx, stored, value.DefaultContext(name))
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	return plain, nil
}
