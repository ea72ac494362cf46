package adopt

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
)

// encrypted begins the values that an API server has encrypted.
var encrypted = []byte("k8s:enc:")

// secrets returns what decrypts k3s's Secrets. It decrypts nothing if k3s does not
// encrypt them. The file has the form of kube-apiserver's --encryption-provider-config,
// with the two providers that k3s knows.
func (k *installation) secrets() (value.Transformer, error) {
	file := k.server("cred", "encryption-config.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var configuration apiserverv1.EncryptionConfiguration
	if err == nil {
		err = json.Unmarshal(text, &configuration)
	}
	if err != nil {
		return nil, fmt.Errorf("read the keys of k3s's Secrets in %s: %w", file, err)
	}
	var known []value.PrefixTransformer
	for _, resource := range configuration.Resources {
		for _, provider := range resource.Providers {
			found, err := transformers(provider)
			if err != nil {
				return nil, fmt.Errorf("read the keys of k3s's Secrets in %s: %w", file, err)
			}
			known = append(known, found...)
		}
	}
	return value.NewPrefixTransformers(fmt.Errorf("none of the keys in %s fits: put the file back that k3s used last, from a backup or from another server", file), known...), nil
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
