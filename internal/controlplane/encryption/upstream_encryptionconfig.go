// Follows k8s.io/apiserver v0.37.2, pkg/server/options/encryptionconfig/config.go.

package encryption

import (
	"errors"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
)

// transformer returns upstream's transformer for a configuration with the providers
// secretbox and identity. Identity comes first if Secrets are written unencrypted.
//
//upstream:follows k8s.io/apiserver/pkg/server/options/encryptionconfig/config.go secretboxPrefixTransformer prefixTransformersAndProbes
func (r keyring) transformer() value.Transformer {
	plain := value.PrefixTransformer{Prefix: []byte{}, Transformer: identity.NewEncryptCheckTransformer()}
	providers := []value.PrefixTransformer{plain}
	if len(r.Keys) > 0 {
		var keys []value.PrefixTransformer
		for _, k := range r.Keys {
			keys = append(keys, value.PrefixTransformer{Prefix: []byte(k.Name + ":"), Transformer: secretbox.NewSecretboxTransformer(k.Secret)})
		}
		encrypted := value.PrefixTransformer{
			Prefix:      []byte(secretboxPrefix),
			Transformer: value.NewPrefixTransformers(errors.New("the cluster no longer has the key that it was encrypted with"), keys...),
		}
		if providers = []value.PrefixTransformer{encrypted, plain}; r.Plain {
			providers = []value.PrefixTransformer{plain, encrypted}
		}
	}
	return value.NewPrefixTransformers(errors.New("no matching prefix found"), providers...)
}
